"""The paper's tables and figures, run again and held against its printed numbers."""
