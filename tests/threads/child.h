// Running something in a child process, with a deadline: a deadlock is a failure, not a hang.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace moeblas::test {

// ThreadSanitizer's list of threads does not survive a fork: in a child, a new thread that gets the
// place of one that was left behind ends the process ("dup thread with used id").
#if defined(__SANITIZE_THREAD__)
#define MOEBLAS_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MOEBLAS_TEST_TSAN 1
#endif
#endif
#if defined(MOEBLAS_TEST_TSAN)
inline constexpr bool kChildrenMayStartThreads = false;
#else
inline constexpr bool kChildrenMayStartThreads = true;
#endif

enum class Child { succeeded, failed, timed_out };

// Forks; the child runs f and exits, successfully if f returned true.
template <class F>
Child in_child(F&& f, int seconds = 300) {
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
