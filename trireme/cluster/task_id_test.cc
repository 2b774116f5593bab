#include "trireme/cluster/task_id.h"

#include <unordered_set>

#include "trireme/cluster/expect_error.h"

namespace trireme {
namespace {

TEST(TaskId, ReadsWhatItWrites) {
  const TaskId task = TaskId::parse("/job:worker/task:12");
  EXPECT_EQ(task, (TaskId{"worker", 12}));
  EXPECT_EQ(task.to_string(), "/job:worker/task:12");
}

TEST(TaskId, RejectsOtherForms) {
  for (const char* text : {"", "worker", "/job:worker", "/task:0", "/job:/task:0",
                           "/job:worker/task:", "/job:worker/task:x", "/job:worker/task:-1",
                           "/job:worker/task:+1", "/job:worker/task: 1", "/job:worker/task:0/cpu:0",
                           "/job:w/x/task:0", "/job:worker/task:99999999999"}) {
    EXPECT_EQ(error_of([&] { TaskId::parse(text); }),
              "task '" + std::string(text) + "' cannot be read; write it as /job:worker/task:0");
  }
}

TEST(TaskId, OrdersByJobThenByNumber) {
  EXPECT_LT((TaskId{"ps", 7}), (TaskId{"worker", 0}));
  EXPECT_LT((TaskId{"worker", 2}), (TaskId{"worker", 10}));
}

TEST(TaskId, Hashes) {
  const std::unordered_set<TaskId> tasks = {{"ps", 0}, {"ps", 1}, {"worker", 0}, {"ps", 0}};
  EXPECT_EQ(tasks.size(), 3u);
}

}  // namespace
}  // namespace trireme
