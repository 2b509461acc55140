// Running something in a child process, with a deadline: a deadlock is a failure, not a hang.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace moeblas::test {

enum class Child { succeeded, failed, timed_out };

// Forks; the child runs f and exits, successfully if f returned true.
template <class F>
Child in_child(F&& f, int seconds = 60) {
  const pid_t pid = fork();
  if (pid == 0) _exit(f() ? 0 : 1);
  if (pid < 0) return Child::failed;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return Child::timed_out;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? Child::succeeded : Child::failed;
}

}  // namespace moeblas::test
