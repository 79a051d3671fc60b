# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_record in a temporary source tree, with stand-ins for the GPU, its tests and compute-sanitizer."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent.parent / "tools/gpu_record"

NVIDIA_SMI = "#!/bin/sh\necho 'NVIDIA H200, 580.1'\n"
SANITIZER = """#!/bin/sh
[ "$1" = --version ] && { echo 'Version 2025.3.1'; exit; }
tool=$2
shift 2
# Where launches may overlap, racecheck stands still.
[ $tool != racecheck ] || { [ $1 = --force-blocking-launches ] && shift; } || sleep 60
"$@"
echo "========= ERROR SUMMARY: ${SANITIZER_ERRORS:-0} errors"
"""
TESTS = """#!/bin/sh
for argument; do
  [ "$argument" != --gtest_list_tests ] || { printf 'Forward.\\n  Works\\n  NeedsTwoGpus\\n  Repeats  # seed = 1\\n'; exit; }
done
[ -n "$TESTS_HANG" ] && sleep 60
[ -n "$TESTS_CRASH" ] && exit 134
for argument; do case $argument in --gtest_output=json:*) report=${argument#--gtest_output=json:};; esac; done
cat "$TESTS_REPORT" > "$report"
echo "shard $GTEST_SHARD_INDEX on GPU $CUDA_VISIBLE_DEVICES"
exit ${TESTS_EXIT_CODE:-0}
"""


def case(name, result="COMPLETED", failures=()):
    return {"name": name, "status": "RUN", "result": result, "failures": [{"failure": text} for text in failures]}


class GpuRecordTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        for name in ("src/core/mask.h", "src/hw/hw.h", "src/hw/sim/machine.cpp", "src/cpu/forward.cpp",
                     "src/forward/kernel.cu", "src/forward/notes.md", "tests/gpu/forward.cu"):
            self.write(name, f"contents of {name}")
        self.environment = {**os.environ, "TANDEM_COMMIT": "abc", "TESTS_REPORT": str(self.root / "report.json"),
                            "PATH": f"{self.root}/path:{os.environ['PATH']}"}
        self.program("path/nvidia-smi", NVIDIA_SMI)
        self.program("path/compute-sanitizer", SANITIZER)
        self.program("bin/tandem_gpu_tests", TESTS)
        self.write("bin/sources.sha256", self.run_tool("--hash").stdout)
        self.report(case("Works"), case("NeedsTwoGpus", "SKIPPED"))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name, text):
        self.write(name, text).chmod(0o755)

    def report(self, *cases):
        self.write("report.json", json.dumps({"testsuites": [{"name": "Forward", "testsuite": cases}]}))

    def run_tool(self, *arguments, **environment):
        return subprocess.run([sys.executable, TOOL, "--root", self.root, *arguments], capture_output=True, text=True,
                              env={**self.environment, **environment}, timeout=60)

    def make(self, *arguments, **environment):
        """Makes a record; returns the finished process and the record."""
        done = self.run_tool("--bin", self.root / "bin", *arguments, **environment)
        return done, json.loads((self.root / "tests/gpu/record.json").read_text())

    def test_a_record_of_these_sources_is_fresh(self):
        done, record = self.make("--sanitize")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(record["machine"]["card"], "NVIDIA H200")
        self.assertEqual(record["machine"]["driver"], "580.1")
        self.assertEqual(record["machine"]["compute_sanitizer"], "2025.3.1")
        self.assertEqual(record["commit"], "abc")
        self.assertEqual([record["tests"][key] for key in ("passed", "failed", "skipped")], [1, 0, 1])
        self.assertEqual({tool: result["errors"] for tool, result in record["sanitizers"].items()},
                         {"memcheck": 0, "racecheck": 0})
        check = self.run_tool("--check")
        self.assertEqual(check.returncode, 0)
        self.assertRegex(check.stdout, r"^GPU record: fresh .*1 passed, 0 failed, 1 skipped")

    def test_a_stale_record_names_what_was_changed_added_and_removed(self):
        self.make()
        self.write("src/core/mask.h", "other contents")
        self.write("src/tile/pipeline.h", "new")
        (self.root / "src/forward/kernel.cu").unlink()
        check = self.run_tool("--check")
        self.assertEqual(check.returncode, 0)
        self.assertTrue(check.stdout.startswith("GPU record: STALE"))
        self.assertEqual(check.stdout.splitlines()[1:],
                         ["  added: src/tile/pipeline.h", "  changed: src/core/mask.h", "  removed: src/forward/kernel.cu"])

    def test_what_runs_only_on_the_host_does_not_make_it_stale(self):
        self.make()
        for name in ("src/cpu/forward.cpp", "src/hw/sim/machine.cpp", "src/forward/notes.md"):
            self.write(name, "other contents")
        self.assertTrue(self.run_tool("--check").stdout.startswith("GPU record: fresh"))

    def test_comments_and_format_do_not_make_it_stale(self):
        self.write("src/core/mask.h", 'int a = 1\'0;  // one\nconst char* url = "http://x"; /* two\n */\n')
        self.write("bin/sources.sha256", self.run_tool("--hash").stdout)
        self.make()
        self.write("src/core/mask.h", '/// other words\nint a = 1\'0;\n  const char* url =\n    "http://x";\n')
        self.assertTrue(self.run_tool("--check").stdout.startswith("GPU record: fresh"))
        self.write("src/core/mask.h", '/// other words\nint a = 1\'0;\n  const char* url =\n    "http://y";\n')
        self.assertTrue(self.run_tool("--check").stdout.startswith("GPU record: STALE"))

    def test_white_space_counts_in_literals_and_where_it_ends_directives(self):
        self.write("src/core/mask.h", '#define ONE\nint a;  const char* b = "x  y";\n')
        self.write("bin/sources.sha256", self.run_tool("--hash").stdout)
        self.make()
        for changed in ('#define ONE int a;\nconst char* b = "x  y";\n', '#define ONE\nint a;  const char* b = "x y";\n'):
            self.write("src/core/mask.h", changed)
            self.assertTrue(self.run_tool("--check").stdout.startswith("GPU record: STALE"), changed)

    def test_failures_are_recorded_and_named(self):
        self.report(case("Works"), case("IsWrong", failures=["1 != 2"]))
        done, record = self.make()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(record["tests"]["failures"], ["Forward.IsWrong"])
        self.assertIn("  failed: Forward.IsWrong", self.run_tool("--check").stdout)

    def test_a_crash_a_hang_and_an_empty_run_are_failures(self):
        for environment, reason in (({"TESTS_CRASH": "1"}, "exit code 134"), ({"TESTS_HANG": "1"}, "time limit"),
                                    ({"TESTS_EXIT_CODE": "139"}, "exit code 139")):
            done, record = self.make("--timeout", "1", **environment)
            self.assertEqual((done.returncode, record["tests"]["failed"]), (1, 1))
            self.assertIn(reason, record["tests"]["failures"][0])
        self.report()
        done, record = self.make()
        self.assertEqual((done.returncode, record["tests"]["failures"]), (1, ["no test ran"]))

    def test_processes_go_over_all_gpus_or_those_that_are_named(self):
        self.program("path/nvidia-smi", NVIDIA_SMI + "[ \"$1\" = -L ] && echo 'the second'\nexit 0\n")
        for named, expected in ((None, ["0", "1", "0"]), ("3", ["3", "3", "3"]), ("2,5", ["2", "5", "2"])):
            logs = self.root / f"logs{named}"
            self.environment.pop("CUDA_VISIBLE_DEVICES", None)
            self.make("--shards", "3", "--logs", logs, **({"CUDA_VISIBLE_DEVICES": named} if named else {}))
            self.assertEqual([(logs / f"tests-{i}.log").read_text() for i in range(3)],
                             [f"shard {i} on GPU {gpu}\n" for i, gpu in enumerate(expected)])

    def test_no_more_processes_are_started_than_there_are_tests(self):
        logs = self.root / "logs"
        done, _ = self.make("--shards", "8", "--logs", logs)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(list(logs.glob("tests-*.log"))), 3)

    def test_what_a_sanitizer_finds_fails_the_record(self):
        done, record = self.make("--sanitize", SANITIZER_ERRORS="3")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(record["sanitizers"]["racecheck"]["errors"], 3)
        self.program("path/compute-sanitizer", "#!/bin/sh\necho 'Device not supported'\n")
        done, record = self.make("--sanitize")
        self.assertEqual(done.returncode, 1)
        self.assertIsNone(record["sanitizers"]["memcheck"]["errors"])

    def test_a_process_that_stands_still_under_racecheck_is_begun_again(self):
        still_once = "[ $tool != racecheck ] || [ -e {0} ] || {{ touch {0}; sleep 60; }}\n".format(self.root / "stood")
        self.program("path/compute-sanitizer", SANITIZER.replace('"$@"\n', still_once + '"$@"\n'))
        done, record = self.make("--sanitize", "--timeout", "6")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([record["sanitizers"][tool]["repeated"] for tool in ("memcheck", "racecheck")], [0, 1])

    def test_a_process_in_which_racecheck_loses_a_launch_is_begun_again(self):
        lost_once = ("[ $tool != racecheck ] || [ -e {0} ] || {{ touch {0}; SANITIZER_ERRORS=1; echo '========= Internal Sanitizer "
                     "Error: Detected a failure to track a kernel launch.'; }}\n").format(self.root / "lost")
        self.program("path/compute-sanitizer", SANITIZER.replace('"$@"\n', lost_once + '"$@"\n'))
        done, record = self.make("--sanitize")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([record["sanitizers"][tool]["repeated"] for tool in ("memcheck", "racecheck")], [0, 1])
        self.assertEqual(record["sanitizers"]["racecheck"]["errors"], 0)

    def test_refuses_binaries_built_from_other_sources(self):
        self.write("src/forward/kernel.cu", "newer than the binary")
        done = self.run_tool("--bin", self.root / "bin")
        self.assertEqual(done.returncode, 2)
        self.assertIn("other sources", done.stderr)
        self.assertFalse((self.root / "tests/gpu/record.json").exists())

    def test_refuses_to_record_without_a_gpu(self):
        self.program("path/nvidia-smi", "#!/bin/sh\nexit 9\n")
        done = self.run_tool("--bin", self.root / "bin")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no GPU", done.stderr)

    def test_without_a_record_it_is_stale(self):
        check = self.run_tool("--check")
        self.assertEqual(check.returncode, 0)
        self.assertTrue(check.stdout.startswith("GPU record: STALE (there is none yet"))

    def test_a_malformed_or_edited_record_fails_the_check(self):
        _, record = self.make()
        edited = json.loads(json.dumps(record))
        edited["sources"]["files"]["src/core/mask.h"] = "0" * 64
        wrong_type = {**record, "tests": {"passed": "many"}}
        for text in ("", "[]", "{}", '{"format": 1', json.dumps(edited), json.dumps(wrong_type),
                     json.dumps({**record, "format": 99})):
            self.write("tests/gpu/record.json", text)
            check = self.run_tool("--check")
            with self.subTest(text=text[:60]):
                self.assertEqual(check.returncode, 1, check.stdout)
                self.assertIn("tools/gpu_record", check.stderr)


if __name__ == "__main__":
    unittest.main()
