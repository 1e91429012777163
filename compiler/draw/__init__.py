"""Graphs to look at: as text, as DOT, as SVG, each value coloured by what was decided about it."""
