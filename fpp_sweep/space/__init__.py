"""Search spaces: checked values, and their form as YAML."""
