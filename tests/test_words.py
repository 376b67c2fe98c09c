"""The project uses standard technical words: banned words stay out of prose and identifiers."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATHS = ("fpp_sweep", "docs", "search_spaces", "tools", "benchmarks", "studies", "tests", "cluster")
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "cluster.yaml", "cluster-onprem.yaml")
EXCEPTIONS = {  # files with banned words, and the reason
    "tests/test_words.py": "lists the banned words",
    "tests/golden/family_small.json": "a measured file, whose copy here is unchanged",
}
SUFFIXES = {".py", ".md", ".yaml", ".json", ".ipynb", ".css", ".js", ".sbatch"}

BANNED = (
    "told",
    "at hand",
    "hear",
    "hears",
    "heard",
    "mend",
    "mends",
    "mended",
    "mending",
    "spoil",
    "spoils",
    "spoiled",
    "whoever",
    "somebody",
    "nobody",
    "borne",
    "what is known",
    "as it were",
    "such as it is",
)
OPENINGS = ("What", "Whether", "Who", "Whoever", "How", "Of", "Those", "The same", "Which")


def files() -> list[Path]:
    paths = [ROOT / name for name in DOCUMENTS]
    for name in PATHS:
        paths.extend(path for path in sorted((ROOT / name).rglob("*")) if path.suffix in SUFFIXES)
    return paths


def words_of(text: str) -> str:
    """Return the text with identifiers split into words: `atHand` and `at_hand` become `at Hand` and `at hand`."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return text.replace("_", " ")


def banned_words(text: str) -> list[str]:
    """Return each banned word with its line."""
    words = words_of(text)
    problems = []
    for phrase in BANNED:
        pattern = rf"\b{phrase}\b".replace(" ", r"\s+")
        for match in re.finditer(pattern, words, flags=re.IGNORECASE):
            line = words.count("\n", 0, match.start()) + 1
            problems.append(f"line {line}: {phrase}")
    return problems


def test_prose_and_identifiers_have_no_banned_word():
    problems = []
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if name not in EXCEPTIONS:
            problems.extend(f"{name} {problem}" for problem in banned_words(path.read_text("utf-8")))
    assert not problems, "\n".join(problems)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def opens_badly(text: str) -> bool:
    return re.match(rf"({'|'.join(OPENINGS)})\b", text) is not None


def test_docstrings_are_imperatives_or_noun_phrases():
    problems = []
    for path in files():
        if path.suffix == ".py":
            for line, text in docstrings(path):
                if opens_badly(text):
                    problems.append(f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}")
    assert not problems, "\n".join(problems)


def test_headings_of_documents_are_noun_phrases_or_imperatives():
    problems = []
    for path in files():
        if path.suffix == ".md":
            headings = re.findall(r"^##+ (.*)$", path.read_text("utf-8"), flags=re.MULTILINE)
            problems.extend(f"{path.relative_to(ROOT)}: {heading}" for heading in headings if opens_badly(heading))
    assert not problems, "\n".join(problems)
