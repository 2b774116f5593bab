#!/usr/bin/env python3
"""Checks that tools/check_modules passes a good tree and fails on each kind of bad one."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_modules"

README = """# A project
```code-map
base/      the ground         <- nothing
cluster/   who is there       <- base
rpc/       calls              <- cluster
graph/     graphs (to come)   <- base
server/    all of it          <- all above
testing/   for tests          <- any
```
"""

GOOD = {
    "README.md": README,
    "trireme/trireme.h": '#pragma once\n\n#include "trireme/base/error.h"\n#include "trireme/version.h"\n',
    "trireme/base/CMakeLists.txt": "trireme_module(base\n  SOURCES error.cc logging.cc\n  HEADERS error.h\n"
    "  LINK absl::status\n  TESTS error_test.cc)\n",
    "trireme/base/error.h": "// Errors.\n#pragma once\n\n#include <string>\n",
    "trireme/base/error.cc": '#include "trireme/base/error.h"\n\n#include "absl/strings/str_cat.h"\n',
    "trireme/base/error_test.cc": '#include <gtest/gtest.h>\n\n#include "trireme/base/error.h"\n#include "trireme/testing/fake.h"\n',
    "trireme/base/logging.h": "#pragma once\n",
    "trireme/base/logging.cc": '#include "trireme/base/logging.h"\n\n#include <spdlog/spdlog.h>\n',
    "trireme/cluster/CMakeLists.txt": "trireme_module(cluster SOURCES spec.cc PROTOS spec.proto HEADERS spec.h\n"
    "  DEPS base TEST_DEPS testing SANITIZE)\n",
    "trireme/cluster/spec.proto": 'syntax = "proto3";\n',
    "trireme/cluster/spec.h": '#pragma once\n\n#include "trireme/base/error.h"\n',
    "trireme/cluster/spec.cc": '#include "trireme/cluster/spec.h"\n\n#include "trireme/cluster/spec.pb.h"\n',
    "trireme/rpc/CMakeLists.txt": "trireme_module(rpc SOURCES channel.cc PROTOS rpc.proto DEPS cluster base)\n",
    "trireme/rpc/rpc.proto": 'import "trireme/cluster/spec.proto";\n',
    "trireme/rpc/channel.h": "#pragma once\n\n#include <grpcpp/grpcpp.h>\n",
    "trireme/rpc/channel.cc": '#include "trireme/rpc/channel.h"\n\n#include "trireme/base/logging.h"\n',
    "trireme/server/CMakeLists.txt": "trireme_module(server SOURCES server.cc DEPS rpc)\n",
    "trireme/server/server.cc": '#include "trireme/cluster/spec.h"\n#include "trireme/rpc/channel.h"\n',
    "trireme/testing/CMakeLists.txt": "trireme_module(testing SOURCES fake.cc DEPS server)\n",
    "trireme/testing/fake.h": "#pragma once\n",
    "trireme/testing/fake.cc": '#include "trireme/testing/fake.h"\n\n#include <grpcpp/grpcpp.h>\n',
}


def check(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True)


class CheckModules(unittest.TestCase):
    def bad(self, expected, changes):
        """Checks that the good tree with these changes fails with exactly one line, which contains `expected`."""
        result = check({name: text for name, text in {**GOOD, **changes}.items() if text is not None})
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 1, result.stdout)
        self.assertIn(expected, result.stdout)

    def with_include(self, path, include):
        return {path: GOOD[path] + f"#include {include}\n"}

    def test_good_tree(self):
        result = check(GOOD)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("5 modules", result.stdout)

    def test_empty_tree_fails(self):
        self.assertNotEqual(check({}).returncode, 0)
        self.assertEqual(check({"README.md": "```code-map\nbase/  ground (to come)  <- nothing\n```\n"}).returncode, 2)

    def test_units_in_a_circle(self):
        self.bad(
            "[cycle] these units include each other in a circle: error, logging",
            {
                **self.with_include("trireme/base/error.cc", '"trireme/base/logging.h"'),
                **self.with_include("trireme/base/logging.h", '"trireme/base/error.h"'),
            },
        )
        longer = {
            "trireme/base/a.h": '#pragma once\n\n#include "trireme/base/b.h"\n',
            "trireme/base/b.cc": '#include "trireme/base/c.h"\n',
            "trireme/base/c.cc": '#include "trireme/base/a.h"\n',
        }
        self.bad("in a circle: a, b, c", longer)

    def test_templates_belong_to_the_unit_of_their_header(self):
        templates = {"trireme/base/a.h": '#pragma once\n\n#include "trireme/base/a_inl.h"\n',
                     "trireme/base/a_inl.h": '#pragma once\n\n#include "trireme/base/a.h"\n'}
        result = check({**GOOD, **templates})
        self.assertEqual(result.returncode, 0, result.stdout)
        templates["trireme/base/a_inl.h"] += '#include "trireme/base/b.h"\n'
        self.bad("in a circle: a, b", {**templates, "trireme/base/b.h": '#pragma once\n\n#include "trireme/base/a.h"\n'})

    def test_a_test_is_not_part_of_a_circle(self):
        result = check({**GOOD, **self.with_include("trireme/base/error_test.cc", '"trireme/base/logging.h"'),
                        "trireme/base/logging.h": '#pragma once\n\n#include "trireme/base/error.h"\n'})
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_upward_include(self):
        self.bad(
            "trireme/base/error.cc:4: [uses] trireme/cluster/spec.h: base may not use cluster; it may use: no other module",
            self.with_include("trireme/base/error.cc", '"trireme/cluster/spec.h"'),
        )

    def test_upward_include_in_a_header(self):
        changes = self.with_include("trireme/base/logging.h", "<trireme/rpc/channel.h>")
        self.bad("trireme/base/logging.h:2: [uses] trireme/rpc/channel.h", changes)

    def test_generated_header_counts_as_its_module(self):
        changes = self.with_include("trireme/base/error.cc", '"trireme/cluster/spec.pb.h"')
        self.bad("trireme/base/error.cc:4: [uses] trireme/cluster/spec.pb.h", changes)

    def test_proto_import(self):
        changes = {"trireme/cluster/spec.proto": 'syntax = "proto3";\nimport "trireme/rpc/rpc.proto";\n'}
        self.bad("trireme/cluster/spec.proto:2: [uses] trireme/rpc/rpc.proto", changes)

    def test_unknown_module(self):
        changes = self.with_include("trireme/base/error.cc", '"trireme/helpers/strings.h"')
        self.bad("there is no module helpers", changes)

    def test_testing_is_for_tests(self):
        changes = self.with_include("trireme/rpc/channel.cc", '"trireme/testing/fake.h"')
        self.bad("rpc may not use testing", changes)

    def test_a_test_keeps_to_its_module(self):
        changes = self.with_include("trireme/base/error_test.cc", '"trireme/rpc/channel.h"')
        self.bad("base may not use rpc", changes)

    def test_umbrella_inside(self):
        self.bad("which is for users", self.with_include("trireme/rpc/channel.cc", '"trireme/trireme.h"'))

    def test_own_header_first(self):
        changes = {"trireme/base/error.cc": '#include <string>\n#include "trireme/base/error.h"\n'}
        self.bad('trireme/base/error.cc:1: [first] includes string first; expected "trireme/base/error.h"', changes)

    def test_pragma_once(self):
        self.bad("trireme/testing/fake.h:1: [once]", {"trireme/testing/fake.h": "#include <string>\n#pragma once\n"})
        self.bad("trireme/testing/fake.h:1: [once]", {"trireme/testing/fake.h": ""})

    def test_grpc_outside_rpc(self):
        self.bad("[grpc] includes grpcpp/server.h", self.with_include("trireme/server/server.cc", "<grpcpp/server.h>"))
        self.bad("[grpc]", self.with_include("trireme/server/server.cc", "<grpc/grpc.h>"))
        self.bad("[grpc]", self.with_include("trireme/server/server.cc", '"trireme/rpc/rpc.grpc.pb.h"'))

    def test_spdlog_outside_logging(self):
        self.bad("[spdlog]", self.with_include("trireme/base/error.cc", "<spdlog/spdlog.h>"))

    def test_public_header_with_engines(self):
        for include in ("<google/protobuf/message.h>", '"absl/status/status.h"', "<nlohmann/json.hpp>", '"trireme/cluster/spec.pb.h"'):
            self.bad("[public] is a public header and includes", self.with_include("trireme/cluster/spec.h", include))

    def test_public_header_with_a_private_one(self):
        changes = self.with_include("trireme/cluster/spec.h", '"trireme/base/logging.h"')
        self.bad("trireme/base/logging.h, which is not in HEADERS of any module", changes)

    def test_umbrella_with_a_private_header(self):
        changes = self.with_include("trireme/trireme.h", '"trireme/rpc/channel.h"')
        self.bad("trireme/trireme.h:5: [public]", changes)

    def test_public_header_missing(self):
        changes = {"trireme/rpc/CMakeLists.txt": "trireme_module(rpc\n  HEADERS gone.h)\n"}
        self.bad("trireme/rpc/CMakeLists.txt:2: [public] HEADERS gone.h", changes)

    def test_cmake_deps(self):
        changes = {"trireme/cluster/CMakeLists.txt": "trireme_module(cluster\n  HEADERS spec.h\n  DEPS base\n  rpc)\n"}
        self.bad("trireme/cluster/CMakeLists.txt:4: [uses] DEPS rpc: cluster may not use rpc; it may use: base", changes)

    def test_cmake_deps_on_testing(self):
        changes = {"trireme/rpc/CMakeLists.txt": "trireme_module(rpc DEPS cluster testing)\n"}
        self.bad("rpc may not use testing", changes)

    def test_cmake_link_by_hand(self):
        text = GOOD["trireme/base/CMakeLists.txt"] + "target_link_libraries(trireme_base PRIVATE trireme::rpc)\n"
        self.bad("[uses] trireme::rpc: base may not use rpc", {"trireme/base/CMakeLists.txt": text})

    def test_module_without_its_call(self):
        self.bad("expected a call trireme_module(rpc", {"trireme/rpc/CMakeLists.txt": "add_library(rpc channel.cc)\n"})

    def test_folder_that_is_not_in_the_map(self):
        self.bad("module extra is not in the code map", {"trireme/extra/CMakeLists.txt": "trireme_module(extra)\n"})
        self.bad("module loose is not in the code map", {"trireme/loose/a.h": "#pragma once\n"})

    def test_file_outside_every_module(self):
        self.bad("trireme/stray.h:1: [map]", {"trireme/stray.h": "#pragma once\n"})

    def test_map_and_folders_disagree(self):
        self.bad("remove '(to come)'", {"trireme/graph/CMakeLists.txt": "trireme_module(graph DEPS base)\n"})
        self.bad("there is no trireme/graph", {"README.md": README.replace(" (to come)", "")})

    def test_map_that_uses_upward(self):
        self.bad("base uses 'rpc', which is not above it", {"README.md": README.replace("<- nothing", "<- rpc")})

    def test_map_with_any(self):
        changes = {"README.md": README.replace("<- cluster", "<- any")}
        self.bad("rpc may not use 'any'", changes)

    def test_map_missing(self):
        self.bad("expected one block", {"README.md": "# Nothing\n"})

    def test_map_line_that_cannot_be_read(self):
        self.bad("README.md:6: [map] expected 'name/", {"README.md": README.replace("(to come)   <- base", "(to come)")})


if __name__ == "__main__":
    unittest.main()
