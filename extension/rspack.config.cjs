// Module ids are counted, not hashed: the hash takes in the folder that is built in, and two builds of the same
// sources would differ.
module.exports = { optimization: { moduleIds: 'natural', chunkIds: 'natural' } };
