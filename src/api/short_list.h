// A list of a few things that needs no memory: validation makes several in each call.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <type_traits>

namespace tandem::api {

/// At most 40 elements; one more is a defect of the library.
template <typename T>
class ShortList {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  ShortList() {}
  ShortList(std::initializer_list<T> items) { append(items); }
  ShortList(const ShortList& other) {
    for (const T& item : other) push_back(item);
  }
  ShortList& operator=(const ShortList&) = delete;

  void append(std::initializer_list<T> items) {
    for (const T& item : items) push_back(item);
  }
  void push_back(const T& item) {
    if (size_ == most) throw std::logic_error("a ShortList is too short");
    items_[size_++] = item;
  }

  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }

 private:
  static constexpr std::size_t most = 40;
  union {  // so that nothing is written before it is pushed
    T items_[most];
  };
  std::size_t size_ = 0;
};

}  // namespace tandem::api
