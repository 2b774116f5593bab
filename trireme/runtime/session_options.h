#pragma once

#include <chrono>
#include <stop_token>
#include <string>

namespace trireme {

// Options of a Session.
struct SessionOptions {
  // Id of the job that a shared container belongs to; empty for a job with the container's name.
  // Letters, digits, '.', '_' and '-'. Has no meaning without a container.
  std::string job;
  // True to continue with the variables that the last program of the job has left, if no session of
  // the job is open. By default the job starts afresh then.
  bool resume = false;
  // True to keep the variables for some minutes when the last session of the job is closed, so that
  // another program can resume it. By default they are freed at once.
  bool keep = false;
  // Container of the session's variables on their tasks. If it is empty, the variables belong to
  // this session and are deleted with it. Sessions of a job that name the same container, and are
  // open at the same time, share variables by name.
  std::string container;
  // True if this session initialises the variables that it uses. Among the sessions that share a
  // container, one should initialise; the others wait until it has.
  bool initializes = true;
  // True if a device that its task lacks is an error. By default a device that the task has takes
  // its place, with a warning.
  bool strict_placement = false;
  // Time limit of each step, unless its SessionStepOptions say otherwise. The first step of a
  // function includes its registration and the initialisation of its variables.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  // Time after which the servers end a session whose program they no longer hear from. Between one
  // second and one day.
  std::chrono::milliseconds lease = std::chrono::minutes(1);
  // Folder with this program's certificates; empty for a cluster without certificates.
  std::string certs;
};

// Options of one step: session.run({.timeout = 5s, .stop = token}, step, x).
struct SessionStepOptions {
  std::chrono::milliseconds timeout = {};  // time limit; 0 for that of the session
  std::stop_token stop = {};               // cancels the step on all tasks
};

}  // namespace trireme
