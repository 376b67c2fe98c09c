"""Reports and tables; `writing.write_report` writes those of a sweep."""
