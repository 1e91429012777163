"""The report as one page of HTML that needs nothing else: what a step holds in memory, layer by layer and value by value."""
