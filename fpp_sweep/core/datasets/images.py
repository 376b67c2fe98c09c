"""Image files as a source of samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from fpp_sweep.core.datasets.base import BadImageError

# What Pillow decodes by itself. By default it would pass a .jpg that is EPS inside to Ghostscript, which executes it.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


@dataclass(frozen=True, slots=True)
class FileImages:
    """Images below a folder, read as ImageFolder reads them: RGB, EXIF orientation left alone."""

    folder: Path

    def image(self, sample_id: str) -> Image.Image:
        path = self.folder / sample_id
        try:
            with path.open("rb") as file:
                return Image.open(file, formats=FORMATS).convert("RGB")
        except Exception as error:  # on damaged bytes Pillow's decoders raise nearly anything
            raise BadImageError(f"{path}: {_reason(path, error)}") from error

    def fingerprint(self, sample_id: str) -> str:
        path = self.folder / sample_id
        try:
            status = path.stat()
            return f"{status.st_size} {status.st_mtime_ns}"  # a replacement may have the same size
        except OSError as error:
            raise BadImageError(f"{path}: {error.strerror}") from error


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image" if path.stat().st_size else "the file is empty"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
