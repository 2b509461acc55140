#include "registry.h"

#include <algorithm>
#include <cstring>

#include "../emulator.h"

namespace moeblas::emu {
namespace {

KernelRow*& head() {
  static KernelRow* first = nullptr;
  return first;
}

}  // namespace

bool add_kernel(KernelRow* row) {
  row->next = head();
  head() = row;
  return true;
}

const KernelRow* first_kernel() { return head(); }

const KernelRow* find_kernel(const std::string& name) {
  const KernelRow* found = nullptr;
  for (const KernelRow* row = head(); row; row = row->next) {
    if (name != row->name) continue;
    if (found)
      throw Error(ErrorKind::usage,
                  "two kernels are named " + name + ": in " + found->file + " and in " + row->file);
    found = row;
  }
  return found;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelRow* row = head(); row; row = row->next) names.push_back(row->name);
  std::sort(names.begin(), names.end());
  return names;
}

bool has_kernel(const std::string& name) { return find_kernel(name) != nullptr; }

std::string file_of_kernel(const std::string& name) {
  const KernelRow* row = find_kernel(name);
  return row ? row->file : "";
}

}  // namespace moeblas::emu
