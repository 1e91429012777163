"""A configured model beside plain eager: are outputs, gradients, buffers and random states the same?"""
