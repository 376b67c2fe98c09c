"""The paper's tables and its theory, computed again."""
