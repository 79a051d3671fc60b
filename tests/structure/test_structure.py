#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds small bad trees to the rules of the structure and sees that they are named."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import structure  # noqa: E402
import readme_examples  # noqa: E402
from cpp import blank, functions  # noqa: E402


def complaints_of(files):
    """What the rules say of a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            file = pathlib.Path(root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return list(structure.check_tree(root))


class Rules(unittest.TestCase):
    def assert_named(self, path, text, *words):
        complaints = complaints_of({path: text})
        self.assertEqual(len(complaints), 1, complaints)
        for part in (path + ":",) + words:
            self.assertIn(part, complaints[0])

    def assert_fine(self, path, text):
        self.assertEqual(complaints_of({path: text}), [])


class Layers(Rules):
    def test_arrows_that_point_up_or_across(self):
        self.assert_named("src/core/a.h", '#include "tile/pipeline.h"\n', "a.h:1:", "core may include core only")
        self.assert_named("src/tile/a.h", '\n#include "forward/plan.h"\n', "a.h:2:", "tile may include")
        self.assert_named("src/cpu/a.cpp", '#include "forward/launch.h"\n', "cpu may include")
        self.assert_named("src/forward/a.cu", '#include "api/validate.h"\n', "forward may include")
        self.assert_named("src/hw/sim/a.cpp", '#include "hw/sm90/tma.h"\n', "hw/sim may include")
        self.assert_named("src/forward/deep/a.h", '#include <cpu/forward.h>\n', "forward may include")

    def test_arrows_that_point_down(self):
        self.assert_fine("src/api/a.cpp", '#include "cpu/forward.h"\n#include "forward/launch.h"\n#include "api/b.h"\n')
        self.assert_fine("src/forward/a.h", '#include <hwy/highway.h>\n\n#include "tile/pipeline.h"\n#include "hw/hw.h"\n')
        self.assert_fine("src/hw/sim/a.h", '#include "hw/types.h"\n#include "hw/sim/b.h"\n')

    def test_machines_are_named_by_hw_alone(self):
        both = '#include "hw/sm90/verbs.h"\n#include "hw/sim/verbs.h"\n'
        self.assert_fine("src/hw/hw.h", both)
        self.assert_fine("tests/sim/a.cpp", both)
        self.assert_named("bench/a.cpp", '#include "hw/sim/verbs.h"\n', "name a machine")
        self.assert_named("apps/tandem/a.cpp", '#include "hw/sm90/tma.h"\n', "name a machine")
        self.assertEqual(len(complaints_of({"src/tile/a.h": both})), 4)

    def test_folders_without_a_layer(self):
        self.assert_named("src/util/a.h", "#include <vector>\n", "no layer")

    def test_paths_from_elsewhere(self):
        self.assert_named("src/core/a.h", '#include "mask.h"\n', "write the path from src/")

    def test_public_headers_stand_alone(self):
        self.assert_named("include/tandem/a.hpp", '#include "core/mask.h"\n', "public header")
        self.assert_fine("include/tandem/a.hpp", "#include <span>\n\n#include <tandem/tandem.h>\n")
        self.assert_named("src/core/a.h", "#include <tandem/attention.hpp>\n", "C interface only")
        self.assert_named("examples/a.cpp", '#include "core/dtype.h"\n', "public headers only")


class Words(Rules):
    def test_assembly(self):
        self.assert_named("src/tile/a.h", 'void f() {\n  asm volatile("nop;");\n}\n', "a.h:2:", "below src/hw/sm90")
        self.assert_named("tests/gpu/a.cu", '__asm__("nop;");\n', "below src/hw/sm90")
        self.assert_fine("src/hw/sm90/a.h", 'asm volatile("nop;");\n')
        self.assert_fine("src/tile/a.h", '// no asm here\nconst char* words = "asm";\nint asm_lines;\n')

    def test_launches_and_kernels(self):
        self.assert_named("src/forward/a.h", "__global__ void kernel();\n", "in .cu files")
        self.assert_named("src/forward/a.cpp", "kernel<<<1, 1>>>();\n", "in .cu files")
        self.assert_fine("src/forward/a.cu", "__global__ void kernel();\n")

    def test_torch(self):
        self.assert_named("src/api/a.cpp", "#include <torch/extension.h>\n", "PyTorch")
        self.assert_named("src/api/CMakeLists.txt", "find_package(torch)\n", "PyTorch")
        self.assert_fine("bench/peers.py", "import torch\n")

    def test_places_of_a_machine(self):
        for place in ("work", "home", "root", "tmp"):
            self.assert_named("docs/a.md", f"Run it in /{place}/someone/tandem.\n", "a.md:1:", "one machine")
        self.assert_fine("docs/a.md", "See tests/home/a and https://example.org/home/a and $HOME/a.\n")

    def test_registries(self):
        for host in ("pypi" + ".org", "files.pythonhosted" + ".org", "deb.debian" + ".org", "crates" + ".io"):
            self.assert_named("tools/setup", f"fetch https://{host}/x\n", "registry", host.removeprefix("files."))
        self.assert_named("tools/setup", "pip install --extra-index" + "-url x\n", "registry")
        self.assert_named("tools/setup", "fetch http:" + "//10.1.2.3/simple\n", "registry")
        self.assert_named("tools/setup", "fetch https://mirror.example" + ":8080/simple\n", "registry")
        self.assert_fine("docs/a.md", "https://docs.nvidia.com/cuda/ and https://arxiv.org/abs/2407.08608\n")


class Sizes(Rules):
    def test_long_files(self):
        self.assert_fine("src/core/a.cpp", "\n" * structure.MAX_FILE_LINES)
        self.assert_named("src/core/a.cpp", "\n" * (structure.MAX_FILE_LINES + 1), "501 lines")
        self.assert_named("tools/a", "#!/usr/bin/env bash\n" + "\n" * structure.MAX_FILE_LINES, "501 lines")
        self.assert_fine("docs/a.md", "\n" * 1000)

    def test_long_functions(self):
        body = "  work();\n" * structure.MAX_FUNCTION_LINES
        self.assert_named("src/core/a.cpp", "namespace a {\n\nvoid long_one() {\n" + body + "}\n}\n", "a.cpp:3:",
                          "long_one", "82 lines")
        self.assert_fine("src/core/a.cpp", "namespace a {\n" + "void f() {}\n" * 100 + "}\n")
        python = "def long_one():\n" + "    work()\n" * structure.MAX_FUNCTION_LINES
        self.assert_named("tools/a.py", python, "long_one", "81 lines")
        self.assert_named("tools/a", "#!/usr/bin/env python3\n" + python, "a:2:", "long_one")

    def test_long_parameter_lists(self):
        self.assert_named("src/core/a.h", "void f(int a, int b, int c, int d, int e, int f, int g);\n", "7 parameters")
        self.assert_named("tools/a.py", "def f(a, b, c, d, e, f, g):\n    pass\n", "7 parameters")
        self.assert_fine("tools/a.py", "def f(a, b, c, *, d, e, f, g):\n    pass\n")
        self.assert_fine(structure.FOREIGN_SIGNATURES[0], "def f(a, b, c, d, e, f, g):\n    pass\n")
        self.assert_fine("tools/a.py", "class A:\n    def f(self, a, b, c, d, e, f):\n        pass\n")

    def test_what_is_ignored(self):
        long = "\n" * 501
        self.assertEqual(complaints_of({".gitignore": "/build/\n*.egg-info/\n", "build/a.cpp": long,
                                        "x.egg-info/a.py": long, ".git/a.py": long,
                                        "picture.png": b"\x89PNG\0" + long.encode()}), [])
        self.assertEqual(len(complaints_of({"build/a.cpp": long})), 1)


class Cpp(unittest.TestCase):
    """What is seen of C++: (name, first line, lines, parameters)."""

    def assert_functions(self, text, *expected):
        self.assertEqual([(f.name, f.line, f.lines, f.parameters) for f in functions(blank(text))], list(expected))

    def test_definitions_and_declarations(self):
        self.assert_functions("int f(int a, int b);\n\n/// Words.\nint g(\n    int a) {\n  return f(a, 1);\n}\n",
                              ("f", 1, 1, 2), ("g", 4, 4, 1))
        self.assert_functions("void f(void) {}\nvoid g() {}\n", ("f", 1, 1, 0), ("g", 2, 1, 0))

    def test_templates_and_default_arguments(self):
        self.assert_functions("template <typename A, typename B>\nvoid f(std::map<A, B> map, int x = g(1, 2)) {\n}\n",
                              ("f", 1, 3, 2))
        self.assert_functions("template <int n>\n  requires(n > 1)\nauto f(A<n> a) -> B<n> {\n}\n", ("f", 1, 4, 1))
        self.assert_functions("template <int n = (1 > 0)>\nvoid f(int (&a)[n / 2], void (*g)(int, int)) {\n}\n",
                              ("f", 1, 3, 2))

    def test_members(self):
        self.assert_functions(
            "class A : public B<C> {\n public:\n  A(int a, int b) : a_(a), b_(b) {}\n"
            "  bool operator==(const A& o) const {\n    return a_ == o.a_;\n  }\n\n private:\n  int a_, b_;\n};\n", ("A", 2, 2, 2), ("operator_", 4, 3, 1))

    def test_what_is_no_function(self):
        self.assert_functions("constexpr int table[] = {f(1, 2), 3};\nauto x = make(1, 2, 3, 4, 5, 6, 7);\n"
                              "struct A {\n  int a;\n};\n"
                              "#define M(a, b, c, d, e, f, g) \\\n  f(a);\nstatic_assert(f(1) == 1);\n")

    def test_comments_strings_and_digits(self):
        self.assert_functions('// void a() {\nconst char* b = "void c() {";\nconst char* r = R"(} ")";\n'
                              "int d() { return 1'000'000 + '{' + '\\''; }\n", ("d", 4, 1, 0))

    def test_kernels(self):
        self.assert_functions("template <V v>\n__global__ void __launch_bounds__(384, 1)\n"
                              "    kernel(const __grid_constant__ A a) {\n}\n", ("kernel", 1, 4, 1))


class ReadmeExamples(unittest.TestCase):
    EXAMPLE = "// SPDX-License-Identifier: Apache-2.0\n#include <a.h>\n\nint main() {}\n"

    def test_the_licence_line_is_not_quoted(self):
        self.assertTrue(readme_examples.quotes("Words.\n```cpp\n#include <a.h>\n\nint main() {}\n```\n", self.EXAMPLE))

    def test_a_difference_is_seen(self):
        self.assertFalse(readme_examples.quotes("```cpp\n#include <a.h>\n\nint main() { }\n```\n", self.EXAMPLE))
        self.assertFalse(readme_examples.quotes("#include <a.h>\n\nint main() {}\n", self.EXAMPLE))


if __name__ == "__main__":
    unittest.main()
