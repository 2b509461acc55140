#!/usr/bin/env python3
"""msl_lint finds the mistakes that are planted here, and none in text without any.

msl_lint_test.py MSL_LINT COMPILER FLAG...
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LINT, COMPILER = sys.argv[1], sys.argv[2:]

HEAD = """#include "simt/portable_kernel.h"
struct Params { uint n; };
"""
GOOD = (
    HEAD
    + """
inline float twice(MB_DEVICE const float* x, uint i) { return metal::fma(x[i], 1.0f, x[i]); }
template <typename T>
MB_KERNEL void scale(MB_DEVICE const T* x MB_ARG(buffer(0)), MB_DEVICE T* y MB_ARG(buffer(1)),
                     MB_PARAMS(Params, p, 2) MB_GRID) {
  MB_TG_ARRAY(float, shared, [32][4]);
  const uint i = mb_group.x * 32 + mb_lane;
  if (mb_simdgroup == 0 && i < p.n) shared[mb_lane][0] = twice((MB_DEVICE const float*)x, i);
  y[i] = T(metal::simd_sum(shared[mb_lane][0]));
}
MB_INSTANTIATE(scale_f32, scale<float>);
"""
)


def lint(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planted.metal"
        path.write_text(text)
        result = subprocess.run([LINT, str(path), "--", *COMPILER], capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


class MslLint(unittest.TestCase):
    def expect(self, old, new, words, text=GOOD):
        self.assertIn(old, text, "what is to be replaced")
        code, output = lint(text.replace(old, new))
        self.assertEqual(code, 1, output)
        self.assertIn(words, output)

    def test_finds_nothing_in_good_text(self):
        code, output = lint(GOOD)
        self.assertEqual((code, output), (0, "msl_lint: 1 texts, nothing found\n"))

    def test_a_repeated_buffer_index(self):
        self.expect("y MB_ARG(buffer(1))", "y MB_ARG(buffer(0))", "x and y share buffer index 0")

    def test_a_gap_in_buffer_indices(self):
        self.expect(
            "MB_PARAMS(Params, p, 2)", "MB_PARAMS(Params, p, 3)", "buffer index 2 is not used"
        )

    def test_a_buffer_index_past_the_last(self):
        self.expect("MB_PARAMS(Params, p, 2)", "MB_PARAMS(Params, p, 31)", "31, past 30")

    def test_an_argument_that_is_not_used(self):
        self.expect("i < p.n", "i < 5", "buffer 2, p, is not used")

    def test_the_place_of_a_finding(self):
        self.expect("y MB_ARG(buffer(1))", "y MB_ARG(buffer(0))", "planted.metal:6: kernel scale")

    def test_too_much_threadgroup_memory(self):
        self.expect("[32][4]", "[2049][4]", "more threadgroup memory than 32768 bytes")

    def test_threadgroup_memory_of_several_arrays(self):
        more = "MB_TG_ARRAY(float, shared, [32][4]); MB_TG_ARRAY(metal::uint4, other, [2017]);"
        self.expect("MB_TG_ARRAY(float, shared, [32][4]);", more, "more threadgroup memory")

    def test_threadgroup_memory_that_just_fits(self):
        code, output = lint(GOOD.replace("[32][4]", "[2048][4]"))
        self.assertEqual(code, 0, output)

    def test_threadgroup_memory_of_an_unknown_type(self):
        self.expect("MB_TG_ARRAY(float,", "MB_TG_ARRAY(T,", "threadgroup memory of kernel scale")

    def test_a_pointer_argument_without_an_address_space(self):
        self.expect(
            "twice(MB_DEVICE const float* x",
            "twice(const float* x",
            "const float* x names no address space",
        )

    def test_a_reference_without_an_address_space(self):
        self.expect(
            "const uint i = ",
            "uint n = p.n; uint& m = n; const uint i = ",
            "uint& m names no address space",
        )

    def test_a_cast_without_an_address_space(self):
        self.expect(
            "(MB_DEVICE const float*)x", "(const float*)x", "const float* names no address space"
        )

    def test_an_argument_without_an_attribute(self):
        self.expect("x MB_ARG(buffer(0))", "x", "kernel scale: x has no attribute")

    def test_a_function_that_the_language_does_not_list(self):
        self.expect("metal::fma(x[i], 1.0f, x[i])", "metal::erf(x[i])", "no member named 'erf'")

    def test_a_function_of_the_compiler(self):
        self.expect(
            "metal::fma(x[i], 1.0f, x[i])",
            "__builtin_sqrtf(x[i])",
            "functions of one compiler: __builtin_sqrtf",
        )

    def test_a_type_that_a_function_does_not_take(self):
        self.expect("metal::simd_sum(shared[mb_lane][0])", "metal::simd_sum(ulong(i))", "simd_sum")

    def test_what_cplusplus_17_brought(self):
        self.expect(
            "if (mb_simdgroup == 0",
            "if constexpr (1) y[i] = T(1);\n  if (mb_simdgroup == 0",
            "a C++17 extension",
        )

    def test_words_that_the_language_does_not_have(self):
        for words, what in {
            "const double d = 1;": "double and long long: double",
            "long long l = 1;": "double and long long: long long",
            "auto f = [](uint a) { return a; };": "lambda expressions",
            "goto end; end:;": "goto",
            "static uint count = 0;": "static variables",
            "std::abs(1);": "C++ library",
            "try {} catch (...) {}": "exceptions",
            "float (*f)(float) = 0;": "function pointers",
            "struct A {}; struct B : A {};": "derived classes",
        }.items():
            with self.subTest(words):
                self.expect(
                    "const uint i = ", words + " const uint i = ", f"the language has no {what}"
                )

    def test_a_name_given_twice(self):
        self.expect(
            "MB_INSTANTIATE(scale_f32, scale<float>);",
            "MB_INSTANTIATE(scale_f32, scale<float>);\nMB_INSTANTIATE(scale_f32, scale<half>);",
            "host name scale_f32 is given twice",
        )

    def test_a_compiler_that_compiles_nothing(self):
        result = subprocess.run([LINT, __file__, "--", "true"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("does not compile kernel text: true", result.stderr)

    def test_a_text_that_is_not_there(self):
        result = subprocess.run([LINT, "no_such.metal", "--", *COMPILER], capture_output=True)
        self.assertNotEqual(result.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
