#pragma once

#include <string>

#include "trireme/cluster/resolver.h"

// Decides which tasks of a cluster a strategy uses, and for what. One place decides it for all,
// so that a process which no strategy uses finds out before it trains alone or serves nobody.
namespace trireme::internal {

// List of the strategies for errors, which begins with a semicolon.
inline constexpr char kStrategyNames[] =
    "; the strategies are 'ps', 'multi_worker_mirrored', 'mirrored', 'central_storage' and "
    "'default'";

// Duty of a process under a strategy.
enum class Duty { kTrain, kServe, kEvaluate, kNone };

// Returns what this process of the cluster does under the strategy of this name.
Duty duty_of(const Cluster& cluster, const std::string& strategy);

// Throws Error if there is no strategy of this name, if this process has no duty under it, or if it
// needs tasks that the cluster lacks. The message says how the process should have been started.
void check_has_duty(const Cluster& cluster, const std::string& strategy);

// Throws Error unless this process is one that trains under the strategy, and so may make it.
void check_trains(const Cluster& cluster, const std::string& strategy);

// Logs a warning that names the jobs of the cluster which the strategy does not use, if there are
// any.
void warn_of_unused_jobs(const Cluster& cluster, const std::string& strategy);

}  // namespace trireme::internal
