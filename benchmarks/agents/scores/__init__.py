"""What is measured of a set of weights: its answers, and where it differs from the base."""
