"""The paper's tables, figures and theory, run again and held against its printed numbers."""
