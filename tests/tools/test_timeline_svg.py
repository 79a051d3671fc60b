# SPDX-License-Identifier: Apache-2.0
"""tools/timeline_svg on small timelines."""

import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/timeline_svg"
SVG = "{http://www.w3.org/2000/svg}"
ROWS = ["block 0, warpgroup 0 (producer)", "block 0, TMA to barrier 2", "block 0, warpgroup 1 (thread)",
        "block 0, warpgroup 1 (consumer)", "block 0, matrix unit 1", "block 1, warpgroup 2 (consumer)"]
SPANS = [(0, "waits: barrier 3", 0, 50), (1, "copy", 10, 40), (2, "waits: named barrier 0", 0, 5),
         (3, "waits: WGMMA", 50, 90), (4, "WGMMA (SS)", 60, 80), (4, "WGMMA (SS)", 70, 85),
         (4, "WGMMA (RS)", 85, 90), (5, "waits: WGMMA", 0, 100)]


def timeline(spans=SPANS):
    events = [{"name": what, "ph": "X", "ts": begin, "dur": end - begin, "pid": 0, "tid": row}
              for row, what, begin, end in spans]
    events += [{"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}}
               for row, name in enumerate(ROWS)]
    return json.dumps({"traceEvents": events})


class TimelineSvg(unittest.TestCase):
    def draw(self, text, *options):
        with tempfile.TemporaryDirectory() as folder:
            source, picture = Path(folder, "timeline.json"), Path(folder, "picture.svg")
            source.write_text(text)
            done = subprocess.run([sys.executable, TOOL, *options, source, picture], capture_output=True, text=True)
            return done, ET.parse(picture).getroot() if picture.exists() else None

    def spans(self, picture, kind):
        """(x, width) of the spans of a kind, without the legend's."""
        boxes = [box for box in picture.iter(f"{SVG}rect") if box.get("class") == kind and float(box.get("y")) > 40]
        return [(float(box.get("x")), float(box.get("width"))) for box in boxes]

    def test_lanes_are_the_agents_in_order_each_followed_by_what_it_started(self):
        done, picture = self.draw(timeline(), "--pipelines", "Q:1 K:2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lanes = [text.text for text in picture.iter(f"{SVG}text") if text.get("class") == "lane"]
        self.assertEqual(lanes, ["producer (warpgroup 0)", "TMA: K stage 0", "consumer (warpgroup 1)", "matrix unit 1"])

    def test_products_of_one_group_are_one_span_and_its_place_is_its_time(self):
        _, picture = self.draw(timeline())
        (copy, copy_width), = self.spans(picture, "copy")
        (scores, scores_width), = self.spans(picture, "ss")
        self.assertAlmostEqual((scores - copy) / copy_width, (60 - 10) / (40 - 10), delta=0.01)
        self.assertAlmostEqual(scores_width / copy_width, (85 - 60) / (40 - 10), delta=0.01)
        self.assertEqual(len(self.spans(picture, "rs")), 1)
        self.assertEqual(len(self.spans(picture, "wait")), 3)

    def test_a_wait_says_for_which_barrier(self):
        for options, expected in (((), "barrier 3"), (("--pipelines", "Q:1 K:2"), "K stage 0 empty")):
            _, picture = self.draw(timeline(), *options)
            self.assertIn(expected, [title.text for title in picture.iter(f"{SVG}title")])

    def test_what_is_no_timeline_is_refused_with_the_reason(self):
        for text, options, reason in (("{", (), "no timeline"), ("{}", (), "traceEvents"),
                                      (timeline(), ("--block", "7"), "nothing happens in block 7")):
            done, picture = self.draw(text, *options)
            self.assertEqual(done.returncode, 1)
            self.assertIn(reason, done.stderr)
            self.assertIsNone(picture)


if __name__ == "__main__":
    unittest.main()
