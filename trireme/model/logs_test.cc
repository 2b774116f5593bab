#include "trireme/model/logs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Logs, KeepFiguresInTheirOrder) {
  Logs logs;
  EXPECT_EQ(error_text([&] { logs["loss"]; }),
            "the logs have no figure 'loss'; the figures are: none");
  logs.set("loss", 2);
  logs.set("accuracy", 0.5);
  logs.set("loss", 1);
  EXPECT_EQ(logs["loss"], 1);
  EXPECT_TRUE(logs.contains("accuracy"));
  EXPECT_FALSE(logs.contains("acc"));
  EXPECT_THAT(logs.entries(),
              ElementsAre(std::pair<std::string, double>("loss", 1), std::pair("accuracy", 0.5)));
  EXPECT_EQ(error_text([&] { logs["val_loss"]; }),
            "the logs have no figure 'val_loss'; the figures are: loss, accuracy");
}

History make_history() {
  History history;
  Logs logs;
  logs.set("loss", 1.0 / 3);
  history.add(4, logs);
  logs.set("loss", std::numeric_limits<double>::quiet_NaN());
  logs.set("val_loss", -std::numeric_limits<double>::infinity());
  history.add(5, logs);
  return history;
}

TEST(History, HasAListForEachFigure) {
  const History history = make_history();
  EXPECT_THAT(history.epochs(), ElementsAre(4, 5));
  EXPECT_THAT(history.names(), ElementsAre("loss", "val_loss"));
  EXPECT_EQ(history["loss"][0], 1.0 / 3);
  EXPECT_EQ(history["val_loss"].size(), 1);
  EXPECT_TRUE(history.contains("val_loss"));
  EXPECT_EQ(error_text([&] { history["acc"]; }),
            "the history has no figure 'acc'; the figures are: loss, val_loss");
}

TEST(History, IsTheSameAfterJson) {
  const std::string json = make_history().to_json();
  const History history = History::from_json(json);
  EXPECT_EQ(history.to_json(), json);
  EXPECT_EQ(history["loss"][0], 1.0 / 3);
  EXPECT_TRUE(std::isnan(history["loss"][1]));
  EXPECT_THAT(history["val_loss"], ElementsAre(-std::numeric_limits<double>::infinity()));
  EXPECT_THAT(history.epochs(), ElementsAre(4, 5));
}

TEST(History, RejectsOtherTexts) {
  for (const char* text : {"", "[]", R"({"epochs": [1]})", R"({"epochs": [1], "figures": [1]})",
                           R"({"epochs": [1], "figures": [["loss", ["x"]]]})"}) {
    EXPECT_THAT(error_text([&] { History::from_json(text); }),
                HasSubstr("the text is not a history"))
        << text;
  }
}

}  // namespace
}  // namespace trireme
