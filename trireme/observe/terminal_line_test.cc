#include "trireme/observe/terminal_line.h"

#include <gtest/gtest.h>

#include <string>

#include "trireme/testing/manual_clock.h"
#include "trireme/testing/read_back.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;

class TerminalLineTest : public testing::Test {
 protected:
  std::string shown() { return terminal_.text(); }

  ManualClock clock_;
  ReadBack terminal_{/*columns=*/11};
  std::FILE* const file_ = terminal_.file();
};

TEST_F(TerminalLineTest, IsRedrawnAtMostOnceInAnInterval) {
  TerminalLine line(file_, milliseconds(50), milliseconds(100), clock_);
  EXPECT_TRUE(line.is_terminal());
  EXPECT_FALSE(line.due());
  clock_.advance(milliseconds(100));
  EXPECT_TRUE(line.due());
  line.show("one");
  EXPECT_EQ(shown(), "\r\x1b[Kone");
  clock_.advance(milliseconds(49));
  EXPECT_FALSE(line.due());
  clock_.advance(milliseconds(1));
  EXPECT_TRUE(line.due());
}

TEST_F(TerminalLineTest, CutsCharactersThatDoNotFit) {
  TerminalLine line(file_, milliseconds(50), {}, clock_);
  EXPECT_EQ(line.columns(), 10u);
  line.show("━━━━━━━━━━━━");
  EXPECT_EQ(shown(), "\r\x1b[K━━━━━━━━━━");
  line.show("0123456789");
  EXPECT_EQ(shown(), "\r\x1b[K0123456789");
}

TEST_F(TerminalLineTest, IsRemovedOnce) {
  {
    TerminalLine line(file_, milliseconds(50), {}, clock_);
    line.clear();
    EXPECT_EQ(shown(), "");
    line.show("one");
    shown();
    line.clear();
    EXPECT_EQ(shown(), "\r\x1b[K");
  }
  EXPECT_EQ(shown(), "");
  { TerminalLine(file_, milliseconds(50), {}, clock_).show("two"); }
  EXPECT_EQ(shown(), "\r\x1b[Ktwo\r\x1b[K");
}

TEST_F(TerminalLineTest, WritesNothingToAFile) {
  std::FILE* const file = std::tmpfile();
  {
    TerminalLine line(file, milliseconds(50), {}, clock_);
    EXPECT_FALSE(line.is_terminal());
    EXPECT_FALSE(line.due());
    line.show("one");
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace trireme
