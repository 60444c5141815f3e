"""Layer 3: from words and YAML to one typed, checked configuration."""
