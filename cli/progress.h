// ProgressBar: how far a long command is, on a terminal; nothing elsewhere.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace moeblas::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what)
      : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(uint64_t done, uint64_t total) {
    const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
    const int percent = static_cast<int>(share * 100);
    if (!terminal_ || percent == shown_) return;
    shown_ = percent;
    const std::string bar(static_cast<size_t>(share * kWidth), '#');
    std::fprintf(stderr, "\r%s [%-*s] %3d %%", what_.c_str(), kWidth, bar.c_str(), percent);
    std::fflush(stderr);
  }
  // Leaves the line as it was before.
  void clear() {
    if (shown_ >= 0)
      std::fprintf(stderr, "\r%*s\r", static_cast<int>(what_.size()) + kWidth + 9, "");
    shown_ = -1;
  }

 private:
  static constexpr int kWidth = 40;
  std::string what_;
  bool terminal_;
  int shown_ = -1;
};

}  // namespace moeblas::cli
