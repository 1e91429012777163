"""Several processes: ranks compare what they are going to do before they communicate."""
