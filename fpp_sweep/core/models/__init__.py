"""A frozen CLIP, and loading one."""
