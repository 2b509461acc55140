#include "support/guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

namespace moeblas::test {
namespace {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
struct sigaction previous[NSIG];
char crash_line[4096];
volatile sig_atomic_t crash_bytes = 0;

void on_crash(int number) {
  if (crash_bytes > 0) {
    [[maybe_unused]] const auto written =
        write(STDERR_FILENO, crash_line, static_cast<size_t>(crash_bytes));
  }
  // Back to whoever was here first, a sanitizer's report included; the instruction faults again.
  sigaction(number, &previous[number], nullptr);
  if (number == SIGABRT) raise(number);
}

void install_once() {
  [[maybe_unused]] static const bool installed = [] {
    struct sigaction action = {};
    action.sa_handler = on_crash;
    for (int number : kSignals) sigaction(number, &action, &previous[number]);
    return true;
  }();
}

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes, Side side, uint8_t fill, size_t alignment)
    : bytes_(bytes) {
  const size_t page = page_size();
  const size_t room = (bytes + page - 1) / page * page;
  mapped_ = room + 2 * page;
  void* pages =
      mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  pages_ = static_cast<uint8_t*>(pages);
  if (room > 0) {
    if (mprotect(pages_ + page, room, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    // Fresh pages are zero, and stay without memory until they are touched.
    if (fill != 0) std::memset(pages_ + page, fill, room);
  }
  data_ = pages_ + page;
  if (side == Side::right) data_ += (room - bytes) / alignment * alignment;
}

GuardedMemory& GuardedMemory::operator=(GuardedMemory&& other) noexcept {
  std::swap(pages_, other.pages_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

GuardedMemory::~GuardedMemory() {
  if (pages_ != nullptr) munmap(pages_, mapped_);
}

std::span<uint8_t> GuardedMemory::pages() const {
  if (pages_ == nullptr) return {};
  return {pages_ + page_size(), mapped_ - 2 * page_size()};
}

uint64_t GuardedMemory::hash() const {
  uint64_t h = 0xcbf29ce484222325u;
  const std::span<uint8_t> all = pages();
  for (size_t i = 0; i < all.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, all.data() + i, sizeof word);
    h = (h ^ word) * 0x100000001b3u;
    h ^= h >> 29;
  }
  return h;
}

CrashLine::CrashLine(const std::string& line) {
  install_once();
  const std::string text = "\ncrashed in: " + line + "\n";
  const size_t length = text.size() < sizeof crash_line ? text.size() : sizeof crash_line;
  std::memcpy(crash_line, text.data(), length);
  crash_bytes = static_cast<sig_atomic_t>(length);
}

CrashLine::~CrashLine() { crash_bytes = 0; }

}  // namespace moeblas::test
