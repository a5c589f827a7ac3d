// A made-up HPU: torch's own hpu device over CPU memory.
//
// An HPU tensor's memory is ordinary memory, so every operation runs on a CPU tensor that shares it: in-place results,
// batch-norm statistics and views are right by themselves. What a real device would make the host wait for is counted.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::IValue;
using c10::Storage;
using c10::StorageImpl;
using c10::Stream;

std::atomic<int64_t> host_reads{0};  // the backward pass runs in a thread of its own
std::atomic<int64_t> waits{0};
std::atomic<int64_t> averages{0};
thread_local DeviceIndex current_device = 0;

DeviceIndex count_devices() {
  const char* text = std::getenv("BOXWRIGHT_SIMULATED_HPUS");
  return text ? static_cast<DeviceIndex>(std::atoi(text)) : 1;
}

// Memory.

struct HpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr host = c10::GetCPUAllocator()->allocate(bytes);
    void* data = host.get();
    auto* owner = new c10::DataPtr(std::move(host));
    return {data, owner, &release, Device(DeviceType::HPU, current_device)};
  }
  static void release(void* owner) {
    delete static_cast<c10::DataPtr*>(owner);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
HpuAllocator allocator;

void release_storage(void* owner) {
  delete static_cast<Storage*>(owner);
}

Storage share(const Storage& storage, Device device, c10::Allocator* grow_with) {
  c10::DataPtr data(storage.mutable_data(), new Storage(storage), &release_storage, device);
  return Storage(Storage::use_byte_size_t(), storage.nbytes(), std::move(data), grow_with, /*resizable=*/true);
}

Tensor shape(Tensor made, const Tensor& like) {
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

Tensor make(Storage storage, c10::DispatchKey key, const Tensor& like) {
  return shape(
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype()), like);
}

// In inference mode too, a view is what its original is: an ordinary tensor, or one without a version counter.
Tensor make_view(const Tensor& original, const Tensor& like) {
  return shape(
      at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, Storage(original.storage()), original.key_set(), like.dtype()),
      like);
}

// CPU tensors over the memory of the HPU tensors of one operation, and the way back.
class Crossing {
 public:
  Tensor to_host(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_hpu()) {
      return tensor;
    }
    StorageImpl* key = tensor.storage().unsafeGetStorageImpl();
    auto found = host_.find(key);
    if (found == host_.end()) {
      found = host_.emplace(key, share(tensor.storage(), at::kCPU, c10::GetCPUAllocator())).first;
      originals_.emplace(found->second.unsafeGetStorageImpl(), tensor);
    }
    Tensor alias = make(found->second, c10::DispatchKey::CPU, tensor);
    pairs_.emplace_back(tensor, alias);
    return alias;
  }

  Tensor to_device(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) {
      return tensor;
    }
    for (const auto& [original, alias] : pairs_) {
      if (alias.is_same(tensor)) {
        return original;
      }
    }
    StorageImpl* key = tensor.storage().unsafeGetStorageImpl();
    auto original = originals_.find(key);
    if (original != originals_.end()) {
      return make_view(original->second, tensor);
    }
    auto found = device_.find(key);
    if (found == device_.end()) {
      Storage shared = share(tensor.storage(), Device(DeviceType::HPU, current_device), &allocator);
      found = device_.emplace(key, std::move(shared)).first;
    }
    return make(found->second, c10::DispatchKey::HPU, tensor);
  }

  // Give arguments that were resized their new memory and shape.
  void settle() {
    for (auto& [original, alias] : pairs_) {
      const Storage& now = alias.storage();
      if (now.data() != original.storage().data()) {
        StorageImpl* mine = original.storage().unsafeGetStorageImpl();
        mine->set_data_ptr_noswap(
            c10::DataPtr(now.mutable_data(), new Storage(now), &release_storage, original.device()));
        mine->set_nbytes(now.nbytes());
      }
      if (original.sizes() != alias.sizes() || original.strides() != alias.strides()) {
        original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      }
    }
  }

 private:
  std::unordered_map<StorageImpl*, Storage> host_;
  std::unordered_map<StorageImpl*, Tensor> originals_;
  std::unordered_map<StorageImpl*, Storage> device_;
  std::vector<std::pair<Tensor, Tensor>> pairs_;
};

// Operations.

bool reads_a_mask(const IValue& value) {
  if (!value.isList()) {
    return false;
  }
  for (const IValue& item : value.toListRef()) {
    if (item.isTensor() && item.toTensor().defined() &&
        (item.toTensor().scalar_type() == at::kBool || item.toTensor().scalar_type() == at::kByte)) {
      return true;
    }
  }
  return false;
}

// Operations whose result's shape, or Python value, is only known once the device has finished.
bool waits_for_device(const std::string& name, const torch::jit::Stack& stack, size_t first) {
  static const std::unordered_set<std::string> waiting = {
      "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2", "aten::unique_dim",
      "aten::unique_consecutive", "aten::bincount"};
  if (waiting.count(name)) {
    return true;
  }
  if (name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_") {
    return reads_a_mask(stack[first + 1]);
  }
  if (name == "aten::repeat_interleave") {
    return stack[first + 1].isNone();  // the output's size was not told
  }
  return false;
}

IValue convert(const IValue& value, const std::function<Tensor(const Tensor&)>& each) {
  if (value.isTensor()) {
    return each(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<Tensor> out;
    for (const Tensor& tensor : value.toTensorVector()) {
      out.push_back(each(tensor));
    }
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> out;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      out.push_back(tensor ? std::optional<Tensor>(each(*tensor)) : std::nullopt);
    }
    return out;
  }
  return value;
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t arguments = op.schema().arguments().size();
  const size_t first = stack->size() - arguments;
  if (waits_for_device(op.schema().name(), *stack, first)) {
    ++host_reads;
  }
  Crossing crossing;
  for (size_t i = first; i < stack->size(); ++i) {
    IValue& value = (*stack)[i];
    if (value.isDevice() && value.toDevice().type() == DeviceType::HPU) {
      value = Device(at::kCPU);
    } else {
      value = convert(value, [&](const Tensor& t) { return crossing.to_host(t); });
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  crossing.settle();
  const size_t results = op.schema().returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    (*stack)[i] = convert((*stack)[i], [&](const Tensor& t) { return crossing.to_device(t); });
  }
}

Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator, c10::DispatchKeySet(c10::DispatchKey::HPU),
      dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::HPU), dtype.value_or(at::get_default_dtype_as_scalartype()));
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool) {
  if (self.is_hpu() && target.is_cpu()) {
    ++host_reads;
  }
  Crossing crossing;
  Tensor out = crossing.to_host(target);
  out.copy_(crossing.to_host(self));
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar read_scalar(const Tensor& self) {
  ++host_reads;
  Crossing crossing;
  return crossing.to_host(self).item();
}

Tensor& set_storage(
    Tensor& self, Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

Tensor& set_whole_storage(Tensor& self, Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef{count}, c10::IntArrayRef{1}, 0);
  return self;
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(source.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return self;
}

Tensor convolve(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  Crossing crossing;
  std::optional<Tensor> host_bias = bias ? std::optional<Tensor>(crossing.to_host(*bias)) : std::nullopt;
  return crossing.to_device(at::convolution_symint(
      crossing.to_host(input), crossing.to_host(weight), host_bias, stride, padding, dilation, transposed,
      output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolve_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  Crossing crossing;
  auto biases = mask[2] ? at::OptionalSymIntArrayRef(gradient.sym_sizes().slice(1, 1)) : std::nullopt;
  auto [a, b, c] = at::convolution_backward_symint(
      crossing.to_host(gradient), crossing.to_host(input), crossing.to_host(weight), biases, stride, padding, dilation,
      transposed, output_padding, groups, mask);
  return {crossing.to_device(a), crossing.to_device(b), crossing.to_device(c)};
}

TORCH_LIBRARY_IMPL(_, HPU, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &read_scalar);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  // Without this, torch would compute it from other operations, and round differently.
  m.impl("silu_backward", torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  m.impl("convolution_overrideable", &convolve);
  m.impl("convolution_backward_overrideable", &convolve_backward);
}

// Mixed precision: the operations that matter to a convolutional network and a small perceptron.
TORCH_LIBRARY_IMPL(_, AutocastHPU, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastHPU, m) {
  KERNEL(DeviceType::HPU, conv2d, lower_precision_fp)
  KERNEL(DeviceType::HPU, linear, lower_precision_fp)
  KERNEL(DeviceType::HPU, matmul, lower_precision_fp)
  KERNEL(DeviceType::HPU, mm, lower_precision_fp)
  KERNEL(DeviceType::HPU, bmm, lower_precision_fp)
  KERNEL(DeviceType::HPU, addmm, lower_precision_fp)
}

// What the plugin's own operators look like.
void average(at::TensorList model, at::TensorList ema, const Tensor& decay) {
  ++averages;
  Crossing crossing;
  const double keep = crossing.to_host(decay).item<float>();
  for (size_t i = 0; i < model.size(); ++i) {
    crossing.to_host(ema[i]).lerp_(crossing.to_host(model[i]), 1 - keep);
  }
}

int64_t count_host_reads() {
  return host_reads;
}

int64_t count_averages() {
  return averages;
}

int64_t count_waits() {
  return waits;
}

void wait_for_device() {
  ++waits;
}

// A CPU tensor over the same memory, for the collectives.
Tensor host_alias(const Tensor& tensor) {
  Crossing crossing;
  return crossing.to_host(tensor);
}

TORCH_LIBRARY(hpu, m) {
  m.def("optimizer_ema(Tensor[] model, Tensor(a!)[] ema, Tensor decay) -> ()", &average);
}

TORCH_LIBRARY(simulated_hpu, m) {
  m.def("host_reads() -> int", &count_host_reads);
  m.def("averages() -> int", &count_averages);
  m.def("waits() -> int", &count_waits);
  m.def("wait() -> ()", &wait_for_device);
  m.def("host_alias(Tensor tensor) -> Tensor", &host_alias);
}

// The device itself.

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return DeviceType::HPU;
  }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override {
    return Device(DeviceType::HPU, current_device);
  }
  void setDevice(Device device) const override {
    current_device = device.has_index() ? device.index() : current_device;
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    current_device = device.has_index() ? device.index() : current_device;
  }
  Stream getStream(Device device) const override {
    return Stream(Stream::DEFAULT, device);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, device);
  }
  Stream exchangeStream(Stream stream) const override {
    return Stream(Stream::DEFAULT, stream.device());
  }
  DeviceIndex deviceCount() const noexcept override {
    return count_devices();
  }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override {
    return true;
  }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(HPU, Guard)

// Torch looks for hooks of exactly this name.
struct HPUHooks final : at::HPUHooksInterface {
  explicit HPUHooks(at::HPUHooksArgs) {}
  void init() const override {}
  bool hasHPU() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return count_devices() > 0;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return count_devices();
  }
  DeviceIndex getCurrentDevice() const override {
    return current_device;
  }
  void setCurrentDevice(DeviceIndex device) const override {
    current_device = device;
  }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  Device getDeviceFromPtr(void*) const override {
    return Device(DeviceType::HPU, current_device);
  }
};

[[maybe_unused]] const bool allocator_registered = [] {
  c10::SetAllocator(DeviceType::HPU, &allocator);
  return true;
}();

}  // namespace

namespace at {
using ::HPUHooks;
REGISTER_HPU_HOOKS(HPUHooks)
}  // namespace at
