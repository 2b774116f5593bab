// The recipe of older distributed programs: TF_CONFIG names the cluster and the task, a server runs
// in each process, a device setter places the variables, and every worker runs a training loop of
// its own. The variables of all workers are the same ones, on the parameter servers.
//
//   trireme launch --workers 2 --ps 2 --same-binary -- train_with_device_setter
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <thread>

namespace tr = trireme;
using torch::Tensor;

constexpr int kSteps = 200, kBatch = 32;

// A linear model. Each process makes the same variables, under the same names.
struct Training {
  // Returns the loss of a step on random points.
  Tensor train() const {
    const Tensor x = torch::rand({kBatch, 2});
    const Tensor y = x.matmul(torch::tensor({3.0f, -2.0f})) + 1;
    const Tensor loss = torch::mse_loss(x.matmul(weight.read()) + bias.read(), y);
    optimizer.minimize(loss);
    return loss;
  }

  tr::Variable weight{"weight", torch::zeros({2})};
  tr::Variable bias{"bias", torch::zeros({})};
  tr::Variable finished{"finished", torch::zeros({}, torch::kInt64), {.trainable = false}};
  tr::Sgd optimizer{{weight, bias}, {.lr = 0.1}};
};

int main(int argc, char** argv) try {
  const tr::Flags flags(
      argc, argv, tr::Usage{.about = "Every worker runs a training loop on shared variables."});
  const tr::Cluster me = tr::resolve(flags);
  if (me.is_local()) {
    std::cerr << "This process has no cluster; give --cluster FILE, set TF_CONFIG, or use trireme "
                 "launch --same-binary.\n";
    return 2;
  }
  const tr::ClusterSpec& spec = me.spec;
  if (me.is_ps()) return tr::Server(me).join();

  const std::string worker =
      "/job:worker/task:" + std::to_string(me.is_worker() ? me.task->index : 0);
  tr::DeviceScope setter(tr::replica_device_setter({.cluster = spec, .worker_device = worker}));
  const Training training;
  const auto step = tr::function("train", [&] { return training.train(); });
  const auto finish =
      tr::function("finish", [&] { training.finished.assign_add(torch::ones({}, torch::kInt64)); });
  const auto read_all = tr::function("read_all", [&] {
    std::vector<Tensor> values{training.finished.read(), training.weight.read(),
                               training.bias.read()};
    for (const tr::Variable& v : training.optimizer.state()) values.push_back(v.read());
    return values;
  });

  if (me.is_worker()) {
    tr::Server server(me);
    tr::Session session(server.target(),
                        {.container = "training", .initializes = false, .certs = me.certs});
    Tensor loss;
    for (int i = 0; i < kSteps; ++i) loss = session.run(step);
    std::printf("%d steps, loss %.4f\n", kSteps, loss.item<double>());
    std::fflush(stdout);
    session.run(finish);
    return server.join();
  }
  // The chief initializes the variables, and waits for the workers.
  tr::Session session("grpc://" + spec.address({"worker", 0}),
                      {.container = "training", .certs = me.certs});
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  std::vector<Tensor> values = session.run(read_all);
  while (values[0].item<int64_t>() < spec.num_tasks("worker")) {
    if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("a worker is missing");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    values = session.run(read_all);
  }
  std::cout << training.weight.name() << " is on " << training.weight.device() << ", "
            << training.bias.name() << " on " << training.bias.device() << "\n";
  std::printf("y = %.2f a + %.2f b + %.2f\n", values[1][0].item<double>(),
              values[1][1].item<double>(), values[2].item<double>());
  tr::end_job(me);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
