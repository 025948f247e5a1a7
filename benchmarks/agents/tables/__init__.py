"""Findings for people: markdown tables, the figure, and the document that holds them."""
