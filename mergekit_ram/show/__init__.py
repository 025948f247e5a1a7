"""A record for people: terminal, model card, page."""
