"""What runs have found, read again, and questions to it."""
