// What a debug build (-DASYNCGEN_CHECK) checks inside the kernels: that no address is computed
// outside of what they were given. They run without Python's lock and on many threads, so a failure
// is only noted, and what follows it is made harmless; when the kernel has returned, the first
// failure becomes a Python exception (`finish` in objects.h). Other builds contain nothing of this.
#pragma once

#ifdef ASYNCGEN_CHECK

#include <atomic>

inline std::atomic<const char*> failed_check{nullptr};

#define ASYNCGEN_TEXT_OF(line) #line
#define ASYNCGEN_TEXT(line) ASYNCGEN_TEXT_OF(line)
// Leaves the function with `instead` if the condition does not hold.
#define CHECK_OR_RETURN(condition, instead)                                             \
  if (!(condition)) {                                                                   \
    failed_check = #condition " does not hold at " __FILE__ ":" ASYNCGEN_TEXT(__LINE__); \
    return instead;                                                                     \
  }

#else

#define CHECK_OR_RETURN(condition, instead)

#endif
