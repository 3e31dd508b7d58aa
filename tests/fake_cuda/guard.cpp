// Makes "cuda" a device that tensors without data can be on, where torch was built without CUDA: autograd asks for a device
// guard and for the accelerator, and both are answered here. Load it before torch is imported.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace at {

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>);

struct CUDAHooks : CUDAHooksInterface {  // the registry looks for this very name
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 2; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace at
