"""tools/rust_shapes.py: long functions and tuple parameters."""

import rust_shapes


def test_parameters_that_are_tuples_are_found():
    text = """
fn plain<F: Fn(u8) -> (u8, u8)>(one: (u8, u8), two: F) -> (u8, u8) { one }
fn hidden<'a>(&self, (one, two): (&'a str, u8)) {}
fn last(
    one: u8,
    (two, three): (u8, u8),
) -> u8 { two }
trait T { fn without_body((one, two): (u8, u8)); }
"""
    assert [name for kind, name in rust_shapes.shapes_of(text)] == ["hidden", "last", "without_body"]


def test_functions_longer_than_a_screen_are_found():
    lines = "    work();\n" * rust_shapes.LINES_MAX
    text = f"fn long(\n    one: u8,\n) {{\n{lines}}}\nfn short() {{ if true {{}} }}\nconst X: &str = f;\n"
    assert list(rust_shapes.shapes_of(text)) == [("long functions", "long")]
