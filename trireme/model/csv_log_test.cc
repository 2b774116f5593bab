#include "trireme/model/csv_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "trireme/model/test_fit.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::make_logs;
using internal::TestFit;
using testing::HasSubstr;

class CsvLogTest : public testing::Test {
 protected:
  CsvLog make(CsvLogOptions options = {}) {
    CsvLog log(path(), options);
    Fit fit = fit_.at({});
    log.on_train_begin(fit);
    return log;
  }
  void end_epoch(CsvLog& log, int64_t epoch,
                 const std::vector<std::pair<std::string, double>>& figures) {
    Fit fit = fit_.at({.epoch = epoch, .epochs = 9});
    Logs logs = make_logs(figures);
    log.on_epoch_end(fit, logs);
  }
  std::string path() const { return folder_.path() + "/log.csv"; }
  std::string text() const { return folder_.read("log.csv"); }

  TemporaryFolder folder_;
  TestFit fit_;
};

TEST_F(CsvLogTest, WritesALineForEachEpoch) {
  CsvLog log = make();
  end_epoch(log, 0, {{"loss", 1.0 / 3}, {"accuracy", 0.5}});
  EXPECT_EQ(text(), "epoch,loss,accuracy\n0,0.3333333333333333,0.5\n");
  end_epoch(log, 1, {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"accuracy", 1}});
  EXPECT_EQ(text(), "epoch,loss,accuracy\n0,0.3333333333333333,0.5\n1,nan,1\n");
}

TEST_F(CsvLogTest, AddsColumnsForFiguresThatComeLater) {
  CsvLog log = make({.separator = ';'});
  end_epoch(log, 0, {{"loss", 2}});
  end_epoch(log, 1, {{"loss", 1}, {"val_loss", 3}, {"a;\"b\"", 4}});
  end_epoch(log, 2, {{"loss", 0}});
  EXPECT_EQ(text(), "epoch;loss;val_loss;\"a;\"\"b\"\"\"\n0;2;;\n1;1;3;4\n2;0;;\n");
  CsvLog other = make({.append = true, .separator = ';'});
  end_epoch(other, 3, {{"a;\"b\"", 5}});
  EXPECT_THAT(text(), HasSubstr("\n3;;;5\n"));
}

TEST_F(CsvLogTest, ReplacesOrContinuesAFile) {
  CsvLog first = make();
  end_epoch(first, 0, {{"loss", 2}});
  CsvLog second = make({.append = true});
  end_epoch(second, 0, {{"loss", 1}});
  EXPECT_EQ(text(), "epoch,loss\n0,2\n0,1\n");
  CsvLog third = make();
  EXPECT_EQ(text(), "epoch,loss\n0,2\n0,1\n");
  end_epoch(third, 0, {{"accuracy", 1}});
  EXPECT_EQ(text(), "epoch,accuracy\n0,1\n");
}

TEST_F(CsvLogTest, RemovesTheLinesThatAreRepeatedAfterARestore) {
  for (const bool append : {false, true}) {
    folder_.write("log.csv", append ? "epoch,loss\n0,9\n" : "");
    CsvLog log = make({.append = append});
    const std::string at_begin = log.save();
    end_epoch(log, 0, {{"loss", 2}});
    const std::string saved = log.save();
    end_epoch(log, 1, {{"loss", 1}});
    end_epoch(log, 2, {{"loss", 0}, {"val_loss", 4}});
    folder_.write("log.csv", text() + "3,cut by a crash");

    CsvLog restored = make({.append = append});
    restored.restore(saved);
    end_epoch(restored, 1, {{"loss", 1}});
    EXPECT_THAT(text(), testing::EndsWith("0,2,\n1,1,\n")) << text();
    EXPECT_THAT(text(), testing::Not(HasSubstr("2,0,4")));
    CsvLog again = make({.append = append});
    again.restore(at_begin);
    end_epoch(again, 0, {{"loss", 2}});
    EXPECT_EQ(text(), append ? "epoch,loss,val_loss\n0,9,\n0,2,\n" : "epoch,loss\n0,2\n");
  }
  CsvLog log = make();
  EXPECT_THAT(error_text([&] { log.restore("x"); }), HasSubstr("the saved state of CsvLog"));
}

TEST_F(CsvLogTest, NamesTheFileThatCannotBeWritten) {
  CsvLog log("/dev/full/log.csv");
  EXPECT_THAT(error_text([&] {
                end_epoch(log, 0, {{"loss", 1}});
              }),
              HasSubstr("CsvLog cannot open '/dev/full/log.csv.new': Not a directory"));
  CsvLog full = make();
  end_epoch(full, 0, {{"loss", 1}});
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/dev/full", path());
  const Error error = error_of([&] { end_epoch(full, 1, {{"loss", 1}}); });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
  EXPECT_THAT(error_text([] { CsvLog(""); }), HasSubstr("CsvLog needs the path"));
}

}  // namespace
}  // namespace trireme
