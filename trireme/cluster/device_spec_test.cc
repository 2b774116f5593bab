#include "trireme/cluster/device_spec.h"

#include "trireme/cluster/expect_error.h"

namespace trireme {
namespace {

const TaskId kMaster = {"worker", 3};
const DeviceList kOneCpu;
const DeviceList kWithGpu = {.cpus = 1, .gpus = 2};

DeviceSpec parse(const std::string& text) {
  return DeviceSpec::parse(text);
}

std::string problem(const std::string& text) {
  return error_of([&] { DeviceSpec::parse(text); });
}

TEST(DeviceSpec, ShortAndFullNamesAreOneGrammar) {
  const DeviceSpec device = parse("/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(
      device,
      (DeviceSpec{.job = "worker", .replica = 0, .task = 1, .type = DeviceType::kGpu, .index = 0}));
  EXPECT_EQ(device.to_string(), "/job:worker/task:1/gpu:0");
  EXPECT_EQ(parse("/job:worker/task:1/gpu:0").to_full_string(),
            "/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(parse("/job:ps/task:0/cpu:0").to_string(), "/job:ps/task:0/cpu:0");
  EXPECT_EQ(parse("/job:ps/replica:2/task:0").to_string(), "/job:ps/replica:2/task:0");
}

TEST(DeviceSpec, MayBePartial) {
  for (const char* text : {"", "/gpu:1", "/task:1", "/job:worker", "/cpu", "/job:worker/gpu:1",
                           "/device:*:1", "/replica:1/cpu:0"}) {
    EXPECT_EQ(parse(text).to_string(), text);
    EXPECT_EQ(parse(parse(text).to_full_string()), parse(text)) << text;
  }
  EXPECT_EQ(parse("/gpu").to_full_string(), "/device:GPU");
}

TEST(DeviceSpec, AStarLeavesAFieldUnset) {
  EXPECT_EQ(parse("/job:*/replica:*/task:*/device:*"), DeviceSpec());
  EXPECT_EQ(parse("/job:*/task:1/cpu:*"), parse("/task:1/cpu"));
  EXPECT_EQ(parse("/device:GPU:*"), parse("/gpu"));
}

TEST(DeviceSpec, TypesAreNotCaseSensitive) {
  EXPECT_EQ(parse("/CPU:0"), parse("/cpu:0"));
  EXPECT_EQ(parse("/device:gpu:1"), parse("/Gpu:1"));
}

TEST(DeviceSpec, InnerScopesOverrideFieldByField) {
  const DeviceSpec worker = parse("/job:worker");
  const DeviceSpec gpu = merge(worker, parse("/gpu:1"));
  EXPECT_EQ(gpu.to_string(), "/job:worker/gpu:1");
  EXPECT_EQ(merge(gpu, parse("/task:1")).to_string(), "/job:worker/task:1/gpu:1");
  EXPECT_EQ(merge(gpu, parse("/job:ps/cpu:0")).to_string(), "/job:ps/cpu:0");
  EXPECT_EQ(merge(gpu, parse("/cpu")).to_string(), "/job:worker/cpu:1");
  EXPECT_EQ(merge(gpu, {}), gpu);
  EXPECT_EQ(merge({}, gpu), gpu);
  EXPECT_EQ(merge(parse("/replica:1"), parse("/replica:2")), parse("/replica:2"));
}

TEST(DeviceSpec, DefaultsToTheDefaultDeviceOfTheTask) {
  EXPECT_EQ(with_defaults(parse("/job:ps/task:1"), kMaster, kOneCpu).to_full_string(),
            "/job:ps/replica:0/task:1/device:CPU:0");
  EXPECT_EQ(with_defaults(parse("/job:ps/task:1"), kMaster, kWithGpu).to_string(),
            "/job:ps/task:1/gpu:0");
  EXPECT_EQ(with_defaults(parse("/cpu"), kMaster, kWithGpu).to_string(),
            "/job:worker/task:3/cpu:0");
  EXPECT_EQ(with_defaults(parse("/device:*:1"), kMaster, kWithGpu).to_string(),
            "/job:worker/task:3/gpu:1");
}

TEST(DeviceSpec, DefaultsToTaskZeroOfTheJob) {
  EXPECT_EQ(with_defaults(parse("/job:worker"), kMaster, kOneCpu).to_string(),
            "/job:worker/task:0/cpu:0");
  EXPECT_EQ(task_of(parse("/job:ps"), kMaster), (TaskId{"ps", 0}));
}

TEST(DeviceSpec, DefaultsToTheMaster) {
  EXPECT_EQ(with_defaults({}, kMaster, kOneCpu).to_string(), "/job:worker/task:3/cpu:0");
  EXPECT_EQ(task_of(parse("/gpu:1"), kMaster), kMaster);
  EXPECT_EQ(task_of(parse("/task:1"), kMaster), (TaskId{"worker", 1}));
}

TEST(DeviceSpec, SoftPlacementChangesOnlyTheDevice) {
  const auto place = [](const std::string& text, const DeviceList& devices) {
    return nearest(parse(text), devices).to_string();
  };
  EXPECT_EQ(place("/job:ps/task:1/gpu:1", kWithGpu), "/job:ps/task:1/gpu:1");
  EXPECT_EQ(place("/job:ps/task:1/gpu:2", kWithGpu), "/job:ps/task:1/gpu:0");
  EXPECT_EQ(place("/job:ps/task:1/gpu:0", kOneCpu), "/job:ps/task:1/cpu:0");
  EXPECT_EQ(place("/job:ps/task:1/cpu:1", kWithGpu), "/job:ps/task:1/cpu:0");
}

TEST(DeviceSpec, TheFirstSlashAndTheCaseOfTheTypeDoNotMatter) {
  for (const std::string text : {"GPU:1", "gpu:1", "/GPU:1", "device:GPU:1", "/device:gpu:1"}) {
    EXPECT_EQ(parse(text), parse("/gpu:1")) << text;
  }
  EXPECT_EQ(parse("CPU"), parse("/cpu"));
  EXPECT_EQ(parse("job:ps/task:0/CPU:0"), parse("/job:ps/task:0/cpu:0"));
}

TEST(WrongDevice, NoSuchType) {
  EXPECT_EQ(problem("/job:worker/tpu:0"),
            "device '/job:worker/tpu:0': tpu is not supported; the types are cpu and gpu");
  EXPECT_EQ(problem("/device:TPU:0"),
            "device '/device:TPU:0': tpu is not supported; the types are cpu and gpu");
  EXPECT_EQ(problem("/device:cuda:0"),
            "device '/device:cuda:0': there is no device type 'cuda'; the types are cpu and gpu");
  EXPECT_EQ(problem("/cuda:0"),
            "device '/cuda:0': there is no field or device type 'cuda'; the fields are job, "
            "replica, task and device, the types are cpu and gpu");
}

TEST(WrongDevice, Malformed) {
  EXPECT_EQ(problem("//cpu:0"), "device '//cpu:0' has nothing after a '/'");
  EXPECT_EQ(problem("ps"),
            "device 'ps': there is no field or device type 'ps'; the fields are job, replica, task "
            "and device, the types are cpu and gpu");
  EXPECT_EQ(problem("/"), "device '/' has nothing after a '/'");
  EXPECT_EQ(problem("/job:worker/"), "device '/job:worker/' has nothing after a '/'");
  EXPECT_EQ(problem("/job:"), "device '/job:': job '' is not a valid name");
  EXPECT_EQ(problem("/job:a b"), "device '/job:a b': job 'a b' is not a valid name");
  EXPECT_EQ(problem("/task:x"), "device '/task:x': task 'x' is not a number");
  EXPECT_EQ(problem("/task"), "device '/task': task '' is not a number");
  EXPECT_EQ(problem("/cpu:"), "device '/cpu:': device index '' is not a number");
  EXPECT_EQ(problem("/cpu:-1"), "device '/cpu:-1': device index '-1' is not a number");
  EXPECT_EQ(problem("/replica:1/replica:*"),
            "device '/replica:1/replica:*': two parts give the replica");
  EXPECT_EQ(problem("/cpu:0/device:GPU:0"),
            "device '/cpu:0/device:GPU:0': two parts give the device");
}

TEST(DeviceList, CountsLogicalDevices) {
  EXPECT_EQ(DeviceList().to_string(), "cpu:1");
  EXPECT_EQ(DeviceList::parse("cpu:2,GPU:1"), (DeviceList{.cpus = 2, .gpus = 1}));
  EXPECT_EQ(DeviceList::parse("gpu:1"), (DeviceList{.cpus = 1, .gpus = 1}));
  EXPECT_EQ(DeviceList::parse("cpu:2,gpu:1").to_string(), "cpu:2,gpu:1");
  EXPECT_EQ(DeviceList::parse("cpu:2").names({"worker", 0}),
            (std::vector<std::string>{"/job:worker/task:0/cpu:0", "/job:worker/task:0/cpu:1"}));
  EXPECT_EQ(kWithGpu.names({"ps", 1}).back(), "/job:ps/task:1/gpu:1");
  EXPECT_TRUE(kWithGpu.has(DeviceType::kGpu, 1));
  EXPECT_FALSE(kWithGpu.has(DeviceType::kGpu, 2));
  EXPECT_FALSE(kWithGpu.has(DeviceType::kCpu, -1));
}

TEST(DeviceList, RejectsInvalidCounts) {
  const auto list_problem = [](const std::string& text) {
    return error_of([&] { DeviceList::parse(text); });
  };
  EXPECT_EQ(
      list_problem("cpu:0"),
      "devices 'cpu:0': 'cpu:0' does not give a count from 1 to 1024; write it as cpu:2,gpu:1");
  EXPECT_EQ(
      list_problem("cpu:2,gpu"),
      "devices 'cpu:2,gpu': 'gpu' does not give a count from 0 to 1024; write it as cpu:2,gpu:1");
  EXPECT_EQ(list_problem("gpu:1025"),
            "devices 'gpu:1025': 'gpu:1025' does not give a count from 0 to 1024; write it as "
            "cpu:2,gpu:1");
  EXPECT_EQ(list_problem("cpu:1,cpu:2"), "devices 'cpu:1,cpu:2': cpu is given twice");
  EXPECT_EQ(list_problem("tpu:1"),
            "devices 'tpu:1': tpu is not supported; the types are cpu and gpu");
  EXPECT_EQ(list_problem(""), "devices '': there is no device type ''; the types are cpu and gpu");
}

}  // namespace
}  // namespace trireme
