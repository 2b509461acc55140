#include "state.h"

#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>

namespace moeblas::emu::metal {

std::recursive_mutex& mutex() {
  static std::recursive_mutex* const one = new std::recursive_mutex;
  return *one;
}

State& state() {
  static State* const one = new State;
  return *one;
}

void misuse(const std::string& what) { throw Error(ErrorKind::usage, "Metal: " + what); }
void beyond(const std::string& what) { throw Error(ErrorKind::limit, "Metal: " + what); }

std::string sha256_of(const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_Digest(text.data(), text.size(), digest, &length, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned i = 0; i < length; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", digest[i]);
    hex += two;
  }
  return hex;
}

bool is_of_file(const std::string& kernel, const std::string& name) {
  const std::string file = "/" + file_of_kernel(kernel), end = "/" + name;
  return file.size() >= end.size() && file.substr(file.size() - end.size()) == end;
}

bool device_is(const char* what) {
  const char* device = std::getenv("METAL_MOCK_DEVICE");
  return device != nullptr && std::string(device) == what;
}

namespace {

void run_one(const Dispatch& dispatch) {
  if (dispatch.kernel == state().faults.dispatch)
    throw Error(ErrorKind::usage, dispatch.kernel + " was made to fail");
  Command command(dispatch.kernel);
  for (const auto& [index, argument] : dispatch.arguments) {
    if (argument.memory.data != nullptr) {
      command.bind(index, argument.memory.data, argument.memory.bytes, argument.offset);
    } else {
      command.set_bytes(index, argument.bytes.data(), argument.bytes.size());
    }
  }
  command.dispatch(dispatch.groups, dispatch.threads, state().options);
  state().kernels.push_back(dispatch.kernel);
}

}  // namespace

std::string Work::run() {
  std::string failure;
  try {
    for (const Dispatch& dispatch : dispatches) run_one(dispatch);
  } catch (const Error& error) {
    failure = error.what();
  }
  dispatches.clear();
  return failure;
}

bool share_memory(const Work& a, const Work& b) {
  for (const Memory& m : a.memory) {
    for (const Memory& n : b.memory) {
      const auto* from = static_cast<const char*>(m.data);
      const auto* to = static_cast<const char*>(n.data);
      if (m.buffer != n.buffer && from < to + n.bytes && to < from + m.bytes) return true;
    }
  }
  return false;
}

Faults& faults() { return state().faults; }
DispatchOptions& dispatch_options() { return state().options; }
const std::vector<std::string>& library_digests() { return state().digests; }
const std::vector<std::string>& kernels_run() { return state().kernels; }
void forget() {
  state().digests.clear();
  state().kernels.clear();
}
std::size_t live_buffers() { return state().buffers; }
std::size_t live_wraps() { return state().wraps; }

}  // namespace moeblas::emu::metal
