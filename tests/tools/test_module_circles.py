"""tools/module_circles.py: which modules depend on which, and circles of them."""

import module_circles
import pytest


@pytest.fixture
def crate(tmp_path):
    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return module_circles.Crate(tmp_path)

    return make


def test_two_modules_that_name_each_other_are_a_circle(crate):
    found = crate(
        {
            "lib.rs": "mod a; mod b; mod c;",
            "a.rs": "use crate::b::B;\npub struct A(B);",
            "b.rs": "pub struct B;\nfn f(_: &super::a::A) {}",
            "c.rs": "use crate::a::A;\nfn g(_: A) {}",
        }
    )
    assert module_circles.circles(found.edges()) == [[("a",), ("b",)]]


def test_names_passed_on_count_for_the_module_that_defines_them(crate):
    found = crate(
        {
            "lib.rs": "mod a; mod b;\npub use a::{A, inner::{Deep as Renamed}};",
            "a/mod.rs": "pub mod inner;\npub struct A;",
            "a/inner.rs": "pub struct Deep;",
            "b.rs": "use crate::{A, Renamed};\nfn f(_: A, _: Renamed) {}",
        }
    )
    assert found.edges()["b",] == {("a",), ("a", "inner")}
    assert module_circles.circles(found.edges()) == []


def test_tests_comments_and_literals_do_not_count(crate):
    text = (
        "// crate::b::B\n"
        'const S: &str = "crate::b::B { \\" ";\nconst C: char = \'"\';\n'
        'const R: &str = r#"super::b"#;\n'
        "#[cfg(test)]\nmod tests { use crate::b::B; fn f(_: B) {} }\n#[cfg(test)]\nuse crate::b::B;\n"
    )
    found = crate({"lib.rs": "mod a; mod b;", "a.rs": text, "b.rs": "use crate::a::S;\npub struct B(S);"})
    assert found.edges()["a",] == set()
    assert found.edges()["b",] == {("a",)}


def test_a_circle_over_three_modules_is_one(crate):
    files = {f"{one}.rs": f"use crate::{other}::X;\npub struct X(X);" for one, other in ("ab", "bc", "ca")}
    found = crate({"lib.rs": "mod a; mod b; mod c;", **files})
    assert module_circles.circles(found.edges()) == [[("a",), ("b",), ("c",)]]
