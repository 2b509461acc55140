// What a lane may touch: its own stack, the buffers bound, threadgroup memory in its turn, and
// constant data of the program. The compiler calls the functions at the end before each load and
// store of kernel text (see simt_library.cmake).
#include <link.h>

#include <cstring>

#include "threadgroup.h"

#if defined(MOEBLAS_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace moeblas::emu {
namespace {

constexpr std::size_t kNear = std::size_t(16) << 20;

const char* verb(Access access) {
  switch (access) {
    case Access::read:
      return "load";
    case Access::write:
      return "store";
    case Access::atomic:
      return "atomic";
  }
  return "?";
}

// Whether the address lies in the program or one of its libraries: a kernel's constant tables.
struct ImageQuery {
  std::size_t address;
  bool inside;
};
int visit_image(dl_phdr_info* info, std::size_t, void* data) {
  auto* query = static_cast<ImageQuery*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const std::size_t low = info->dlpi_addr + segment.p_vaddr;
    if (query->address - low < segment.p_memsz) query->inside = true;
  }
  return query->inside ? 1 : 0;
}
bool in_image(std::size_t address) {
  // Tables are read again and again: the page that was found last answers for itself.
  thread_local std::size_t known_page = ~std::size_t(0);
  if (address >> 12 == known_page) return true;
  ImageQuery query{address, false};
  dl_iterate_phdr(&visit_image, &query);
  if (query.inside) known_page = address >> 12;
  return query.inside;
}

}  // namespace

void Threadgroup::check_access(std::size_t address, std::size_t bytes, Access access) {
  if (bytes == 0) return;
  if (self().fiber.on_stack(address, bytes)) {
#if defined(MOEBLAS_EMU_ASAN)
    if (__asan_region_is_poisoned(reinterpret_cast<void*>(address), bytes)) {
      set_failure(ErrorKind::bounds, std::string(verb(access)) + " of " + std::to_string(bytes) +
                                         " bytes past an array in thread memory" + by_self());
      abandon();
    }
#endif
    return;
  }
  if (!allowed(address, bytes, access)) abandon();
}

void Threadgroup::check_aligned_access(std::size_t address, std::size_t bytes, Access access) {
  check_access(address, bytes, access);
  if ((address & (bytes - 1)) == 0 || self().fiber.on_stack(address, bytes)) return;
  set_failure(ErrorKind::undefined, std::string(verb(access)) + " of " + std::to_string(bytes) +
                                        " bytes at a misaligned address" + by_self());
  abandon();
}

bool Threadgroup::allowed(std::size_t address, std::size_t bytes, Access access) {
  const auto inside = [&](const Command::Binding& b) {
    return address - b.address < b.bytes && bytes <= b.bytes - (address - b.address);
  };
  const auto* last = static_cast<const Command::Binding*>(last_binding_);
  if (!last || !inside(*last)) {
    if (in_threadgroup_memory(address)) return allowed_in_arena(address, bytes, access);
    last = nullptr;
    for (const auto& b : command_.bindings_)
      if (b.bound && inside(b) && (!last || b.writable)) last = &b;
    if (last) last_binding_ = last;
  }
  if (last) {
    if (access == Access::read || last->writable) return true;
    set_failure(ErrorKind::bounds, std::string(verb(access)) + " to buffer " +
                                       std::to_string(last - command_.bindings_.data()) +
                                       ", which is bound for reading only" + by_self());
    return false;
  }
  const Simdgroup& group = group_of_self();
  if (address - reinterpret_cast<std::size_t>(&group.slots) < sizeof group.slots) return true;
  if (access == Access::read && in_image(address)) return true;
  report_bounds(address, bytes, access);
  return false;
}

bool Threadgroup::allowed_in_arena(std::size_t address, std::size_t bytes, Access access) {
  const std::size_t at = address - reinterpret_cast<std::size_t>(arena_.data());
  const Shared* near = nullptr;
  for (const Shared& s : shared_) {
    if (at >= s.offset && at + bytes <= s.offset + s.bytes) {
      if (!options_.check_races) return true;
      const Accessor by{running_, first_epoch_, epoch_, group_of_self().epoch};
      const Conflict conflict = shadow_.check(at, bytes, access, by);
      if (conflict.kind == Conflict::none) return true;
      std::string what = conflict.kind == Conflict::race ? "race" : "read of what none wrote";
      what += " on threadgroup memory: " + std::string(verb(access)) + " of " +
              std::to_string(bytes) + " bytes at " + s.name + " + " +
              std::to_string(at - s.offset) + by_self();
      if (conflict.kind == Conflict::never_written) {
        if (unwritten_.empty()) unwritten_ = what;
        return true;
      }
      what += "; byte " + std::to_string(conflict.byte) + " was " +
              (conflict.other_wrote ? "written" : "read") + " by " + who(conflict.other_thread) +
              ", which " + place(conflict.other_thread) + ", and no barrier stands between";
      unwritten_.clear();
      set_failure(ErrorKind::race, what);
      return false;
    }
    // The piece that begins last before the access is the one that was overrun, unless the access
    // lies just under the next.
    if (!near || at + 64 >= s.offset) near = &s;
  }
  std::string what = std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes at ";
  if (near) {
    const bool under = at < near->offset;
    what += "threadgroup memory " + near->name + (under ? " - " : " + ") +
            std::to_string(under ? near->offset - at : at - near->offset) + ", which has " +
            std::to_string(near->bytes) + " bytes";
  } else {
    what += "threadgroup memory, of which there is none";
  }
  set_failure(ErrorKind::bounds, what + by_self());
  return false;
}

void Threadgroup::report_bounds(std::size_t address, std::size_t bytes, Access access) {
  const Command::Binding* near = nullptr;
  std::size_t distance = kNear;
  for (const auto& b : command_.bindings_) {
    if (!b.bound || b.bytes == 0) continue;
    const std::size_t d = address < b.address             ? b.address - address
                          : address < b.address + b.bytes ? 0
                                                          : address - (b.address + b.bytes);
    if (d < distance) {
      distance = d;
      near = &b;
    }
  }
  std::string what = std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes at ";
  if (address < 4096) {
    what += "a null pointer";
  } else if (near) {
    const bool under = address < near->address;
    what += "buffer " + std::to_string(near - command_.bindings_.data()) + (under ? " - " : " + ") +
            std::to_string(under ? near->address - address : address - near->address) +
            ", which has " + std::to_string(near->bytes) + " bytes";
  } else {
    what += "an address in no buffer that is bound";
  }
  set_failure(ErrorKind::bounds, what + by_self());
}

}  // namespace moeblas::emu

namespace {

void check(const volatile void* address, std::size_t bytes, moeblas::emu::Access access) {
  moeblas::emu::Threadgroup* group = moeblas::emu::Threadgroup::running();
  if (group) group->check_access(reinterpret_cast<std::size_t>(address), bytes, access);
}

void check_aligned(const volatile void* address, std::size_t bytes, moeblas::emu::Access access) {
  moeblas::emu::Threadgroup* group = moeblas::emu::Threadgroup::running();
  if (group) group->check_aligned_access(reinterpret_cast<std::size_t>(address), bytes, access);
}

}  // namespace

// The names are those that clang derives from the prefix it is given. What clang knows to be
// aligned comes with its size in the name; the rest, as N.
#define MOEBLAS_EMU_HOOK(bytes)                                     \
  void moeblas_emu_load##bytes##_noabort(const volatile void* p) {  \
    check_aligned(p, bytes, moeblas::emu::Access::read);            \
  }                                                                 \
  void moeblas_emu_store##bytes##_noabort(const volatile void* p) { \
    check_aligned(p, bytes, moeblas::emu::Access::write);           \
  }

extern "C" {
MOEBLAS_EMU_HOOK(1)
MOEBLAS_EMU_HOOK(2)
MOEBLAS_EMU_HOOK(4)
MOEBLAS_EMU_HOOK(8)
MOEBLAS_EMU_HOOK(16)
void moeblas_emu_loadN_noabort(const volatile void* p, std::size_t bytes) {
  check(p, bytes, moeblas::emu::Access::read);
}
void moeblas_emu_storeN_noabort(const volatile void* p, std::size_t bytes) {
  check(p, bytes, moeblas::emu::Access::write);
}
void* moeblas_emu_memcpy(void* to, const void* from, std::size_t bytes) {
  check(from, bytes, moeblas::emu::Access::read);
  check(to, bytes, moeblas::emu::Access::write);
  return std::memcpy(to, from, bytes);
}
void* moeblas_emu_memmove(void* to, const void* from, std::size_t bytes) {
  check(from, bytes, moeblas::emu::Access::read);
  check(to, bytes, moeblas::emu::Access::write);
  return std::memmove(to, from, bytes);
}
void* moeblas_emu_memset(void* to, int value, std::size_t bytes) {
  check(to, bytes, moeblas::emu::Access::write);
  return std::memset(to, value, bytes);
}
}

// Called before what does not return; only the sanitizer itself has work to do there.
#if !defined(MOEBLAS_EMU_ASAN)
extern "C" __attribute__((weak)) void __asan_handle_no_return() {}
#endif
