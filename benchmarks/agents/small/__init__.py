"""The small scale: SmolLM2-135M-Instruct, three agents made from it, and what is measured."""
