"""How the embedded CLIP was trained."""
