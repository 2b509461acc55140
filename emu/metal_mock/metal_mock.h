// What a test can ask of the Metal mock, and make it do.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "../emulator.h"

namespace moeblas::emu::metal {

// The files of kernel text that the emulator compiled into this program: a library is made of no
// other text. Defined by the program.
struct CompiledText {
  const char* name;
  const char* sha256;
};
std::span<const CompiledText> compiled_texts();

// What the device refuses. The environment variable METAL_MOCK_DEVICE sets the device of the whole
// process: "none", or "old" for one without the families that the backend needs.
struct Faults {
  std::string library;                            // text of this name does not compile
  std::string pipeline;                           // no pipeline is made of this kernel
  std::string dispatch;                           // this kernel fails as it runs
  std::size_t most_bytes = std::size_t(1) << 34;  // of a buffer
  unsigned most_threads = 1024;                   // of a pipeline's threadgroups
  bool no_copy = false;                           // memory of the caller's is refused
};
Faults& faults();

// How kernels are run.
DispatchOptions& dispatch_options();

// What happened since the last call of forget(): SHA-256 of the strings that libraries were made
// of, and kernels in the order in which they ran.
const std::vector<std::string>& library_digests();
const std::vector<std::string>& kernels_run();
void forget();

// Buffers that exist; those that wrap the caller's memory among them.
std::size_t live_buffers();
std::size_t live_wraps();

}  // namespace moeblas::emu::metal
