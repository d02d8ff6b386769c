// Generated from ONNX "fixtures/onnx/block.onnx" by burn-onnx
extern crate alloc;
use burn::prelude::*;
use burn::nn::Linear;
use burn::nn::LinearConfig;
use burn::tensor::Bytes;
use burn_store::BurnpackStore;
use burn_store::ModuleSnapshot;


#[derive(Module, Debug)]
pub struct Model {
    linear1: Linear,
    linear2: Linear,
    linear3: Linear,
    linear4: Linear,
    linear5: Linear,
    linear6: Linear,
    #[module(skip)]
    device: Device,
}


extern crate std;

impl Default for Model {
    fn default() -> Self {
        Self::from_file("fixtures/onnx/block.bpk", &Default::default())
    }
}

impl Model {
    /// Load model weights from a burnpack file.
    pub fn from_file<P: AsRef<std::path::Path>>(file: P, device: &Device) -> Self {
        let mut model = Self::new(device);
        let mut store = BurnpackStore::from_file(&file);
        model
            .load_from(&mut store)
            .unwrap_or_else(|e| {
                panic!("Failed to load burnpack file {}: {e}", file.as_ref().display())
            });
        model
    }

    /// Load model weights from in-memory bytes.
    ///
    /// The bytes must be the contents of a `.bpk` file.
    pub fn from_bytes(bytes: Bytes, device: &Device) -> Self {
        let mut model = Self::new(device);
        let mut store = BurnpackStore::from_bytes(Some(bytes));
        model
            .load_from(&mut store)
            .unwrap_or_else(|e| panic!("Failed to load burnpack bytes: {e}"));
        model
    }
}

impl Model {
    #[allow(unused_variables)]
    pub fn new(device: &Device) -> Self {
        let linear1 = LinearConfig::new(64, 64).with_bias(false).init(device);
        let linear2 = LinearConfig::new(64, 32).with_bias(false).init(device);
        let linear3 = LinearConfig::new(64, 32).with_bias(false).init(device);
        let linear4 = LinearConfig::new(64, 64).with_bias(false).init(device);
        let linear5 = LinearConfig::new(64, 128).with_bias(false).init(device);
        let linear6 = LinearConfig::new(128, 64).with_bias(false).init(device);
        Self {
            linear1,
            linear2,
            linear3,
            linear4,
            linear5,
            linear6,
            device: device.clone(),
        }
    }

    #[allow(clippy::let_and_return, clippy::approx_constant)]
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let linear1_out1 = self.linear1.forward(x.clone());
        let linear2_out1 = self.linear2.forward(x.clone());
        let linear3_out1 = self.linear3.forward(x.clone());
        let (attention1_out1,) = {
            let q = linear1_out1;
            let k = linear2_out1;
            let v = linear3_out1;
            let [batch_size, q_sequence_length, q_hidden_size] = q.dims();
            #[allow(clippy::identity_op)]
            let head_size = q_hidden_size / 4usize;
            let kv_sequence_length = k.dims()[1];
            #[allow(clippy::identity_op)]
            let v_head_size = v.dims()[2] / 2usize;
            let q = q
                .reshape([batch_size, q_sequence_length, 4usize, head_size])
                .permute([0, 2, 1, 3]);
            let k = k
                .reshape([batch_size, kv_sequence_length, 2usize, head_size])
                .permute([0, 2, 1, 3]);
            let v = v
                .reshape([batch_size, kv_sequence_length, 2usize, v_head_size])
                .permute([0, 2, 1, 3]);
            let groups = q.dims()[1] / k.dims()[1];
            let (k, v) = if groups > 1 {
                let [batch, kv_heads, k_len, k_dim] = k.dims();
                let v_dim = v.dims()[3];
                (
                    k
                        .unsqueeze_dim::<5>(2)
                        .expand([batch, kv_heads, groups, k_len, k_dim])
                        .reshape([batch, kv_heads * groups, k_len, k_dim]),
                    v
                        .unsqueeze_dim::<5>(2)
                        .expand([batch, kv_heads, groups, k_len, v_dim])
                        .reshape([batch, kv_heads * groups, k_len, v_dim]),
                )
            } else {
                (k, v)
            };
            let hide = {
                let [batch, heads, q_len, _] = q.dims();
                let k_len = k.dims()[2];
                let rows = Tensor::<
                    1,
                    Int,
                >::arange(0..q_len as i64, (&self.device, burn::tensor::DType::I64))
                    .reshape([q_len, 1])
                    .expand([q_len, k_len]);
                let cols = Tensor::<
                    1,
                    Int,
                >::arange(0..k_len as i64, (&self.device, burn::tensor::DType::I64))
                    .reshape([1, k_len])
                    .expand([q_len, k_len]);
                cols.greater(rows).unsqueeze::<4>().expand([batch, heads, q_len, k_len])
            };
            let attention1_out1 = burn::tensor::module::attention(
                q,
                k,
                v,
                Some(hide),
                None,
                burn::tensor::ops::AttentionModuleOptions {
                    scale: None,
                    softcap: None,
                    is_causal: false,
                },
            );
            let attention1_out1 = attention1_out1
                .permute([0, 2, 1, 3])
                .reshape([batch_size as i32, q_sequence_length as i32, -1]);
            (attention1_out1,)
        };
        let linear4_out1 = self.linear4.forward(attention1_out1);
        let add1_out1 = x.add(linear4_out1);
        let linear5_out1 = self.linear5.forward(add1_out1.clone());
        let relu1_out1 = burn::tensor::activation::relu(linear5_out1);
        let linear6_out1 = self.linear6.forward(relu1_out1);
        let add2_out1 = add1_out1.add(linear6_out1);
        add2_out1
    }
}
