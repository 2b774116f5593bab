#include "trireme/observe/terminal_line.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <string>

#include "trireme/testing/manual_clock.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;

class TerminalLineTest : public testing::Test {
 protected:
  void SetUp() override {
    winsize size = {.ws_row = 24, .ws_col = 11, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    ASSERT_EQ(openpty(&controller_, &terminal, nullptr, nullptr, &size), 0);
    file_ = fdopen(terminal, "w");
  }
  void TearDown() override {
    std::fclose(file_);
    close(controller_);
  }

  // Returns the bytes that were written to the terminal since the last call. The kernel passes them
  // on some time later, so a mark is written behind them, and read again.
  std::string shown() {
    constexpr char kMark = '#';
    std::fputc(kMark, file_);
    std::fflush(file_);
    std::string text;
    for (char byte = 0; read(controller_, &byte, 1) == 1 && byte != kMark;) text.push_back(byte);
    return text;
  }

  ManualClock clock_;
  int controller_ = -1;
  std::FILE* file_ = nullptr;
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
