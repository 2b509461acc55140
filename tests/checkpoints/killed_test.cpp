// Quantizing is killed before each system call that changes something on the disk. The linker sends
// those calls through here (--wrap).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/quantize.h"
#include "checkpoints/tiny_model.h"
#include "moeblas/kernels.h"

namespace {

int calls = 0;
int kill_at = 0;

void count() {
  if (++calls == kill_at) ::raise(SIGKILL);
}

}  // namespace

extern "C" {

int __real_open(const char*, int, ...);
int __real_ftruncate(int, off_t);
ssize_t __real_pwrite(int, const void*, size_t, off_t);
int __real_fsync(int);
int __real_close(int);
int __real_mkdir(const char*, mode_t);
int __real_rename(const char*, const char*);

int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  count();
  return __real_open(path, flags, mode);
}
int __wrap_ftruncate(int file, off_t size) { return count(), __real_ftruncate(file, size); }
ssize_t __wrap_pwrite(int file, const void* data, size_t size, off_t at) {
  return count(), __real_pwrite(file, data, size, at);
}
int __wrap_fsync(int file) { return count(), __real_fsync(file); }
int __wrap_close(int file) { return count(), __real_close(file); }
int __wrap_mkdir(const char* path, mode_t mode) { return count(), __real_mkdir(path, mode); }
int __wrap_rename(const char* from, const char* to) { return count(), __real_rename(from, to); }

}  // extern "C"

namespace moeblas::test {
namespace {

namespace fs = std::filesystem;

// Names and contents of a folder.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

bool loads(const fs::path& folder) {
  return error_of([&] { read_all(checkpoint::Checkpoint::open(folder)); }).empty();
}

TEST(Killed, LeavesInputAndOutputWhole) {
  set_num_threads(1);  // a child starts no threads
  const Folder folder;
  write_model(folder / "in", {});
  write_file(folder / "in" / "tokenizer.json", "{}");
  const auto quantize = [&](const std::string& out) {
    checkpoint::quantize_checkpoint(folder / "in", folder / out,
                                    {.spec = {Mode::affine, 4, 16}, .shard_bytes = 2000});
  };
  const auto before = contents(folder / "in");
  calls = 0;
  quantize("whole");
  const int total = calls;
  const auto whole = contents(folder / "whole");
  ASSERT_GT(total, 60);

  int complete = 0, partial = 0;
  for (int n = 1; n <= total; ++n) {
    const pid_t child = ::fork();
    if (child == 0) {
      calls = 0;
      kill_at = n;
      quantize("out");
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << n;

    EXPECT_EQ(contents(folder / "in"), before) << n;
    if (fs::exists(folder / "out")) {
      ++complete;
      EXPECT_EQ(contents(folder / "out"), whole) << n;
      EXPECT_FALSE(fs::exists(folder / "out.partial")) << n;
    } else if (fs::exists(folder / "out.partial")) {
      ++partial;
      // It loads only when nothing is missing but its name.
      const auto files = contents(folder / "out.partial");
      EXPECT_EQ(loads(folder / "out.partial"), files == whole) << n;
      for (const auto& [name, bytes] : files) {
        if (!name.ends_with(".safetensors") || bytes == whole.at(name)) continue;
        EXPECT_NE(error_of([&] { checkpoint::Safetensors::open(folder / "out.partial" / name); }),
                  "")
            << n << " " << name;
      }
    }
    fs::remove_all(folder / "out");
    fs::remove_all(folder / "out.partial");
  }
  EXPECT_GT(complete, 0);
  EXPECT_GT(partial, 50);
}

}  // namespace
}  // namespace moeblas::test
