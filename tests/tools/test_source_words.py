"""tools/source_words.py counts doc comments and texts, and refuses more of them than their number."""

import pytest
import source_words


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Returns a function that gives (kind, line number, phrase) of each phrase in a source file of this text."""
    monkeypatch.setattr(source_words, "ROOT", tmp_path)

    def read(text, name="src/file.rs"):
        path = tmp_path / "crates" / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return [(kind, number, phrase) for kind, number, phrase, _ in source_words.found_in(path)]

    return read


def test_doc_comments_begin_with_a_noun_or_a_verb(found):
    assert found("/// Whether it is full.\nfn is_full() {}\n") == [(0, 1, "Whether")]
    assert found("/// Returns true if\n/// Of these one is full.\nfn is_full() {}\n") == []
    assert found("//! Of a file.\n\n/// Largest file.\n") == [(0, 1, "Of")]


def test_phrases_of_doc_comments_are_counted_across_lines(found):
    assert found("/// Returns the file by\n/// which it goes\n/// on.\n") == [(1, 1, "by which"), (1, 1, "goes on")]
    assert found("/// ```\n/// told\n/// ```\n/// `anew`\n") == []
    assert found("// A comment that is not for documents: told.\n") == []


def test_phrases_of_texts_are_counted_outside_of_tests(found):
    text = 'fn f() { g("it was \\\n    told"); h(\'"\'); i("told {what}", "told"); }\n'
    assert found(text) == [(2, 1, "told"), (2, 2, "told")]
    assert found(text, "src/tests.rs") == found(text, "tests/all.rs") == []
    assert found('#[cfg(test)]\nmod tests {\n    const TEXT: &str = "it is told";\n}\n') == []
    assert found("\n" + '#[cfg(test)]\nmod tests {\n    const TEXT: &str = "it is told";\n}\n') == []


def test_numbers_only_shrink():
    numbers = {"one": (0, 2, 1), "two": (0, 0, 0)}
    assert [*source_words.check(numbers, {"one": (0, 2, 1)})] == []
    assert [*source_words.check(numbers, {"one": (0, 3, 1)})] == []
    assert len([*source_words.check(numbers, {})]) == 2
