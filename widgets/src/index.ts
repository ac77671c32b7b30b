/** What the sidebar (or any other host) needs to show the dashboard. */

export type { StreamStats } from './accounts.js';
export { uuid, type KernelLike } from './channel.js';
export type { ChartDocument } from './commands.js';
export type { Connection, ConnectionState } from './connection.js';
export { mountDashboard, type DashboardOptions } from './dashboard.js';
export { download } from './dom.js';
export type { DashboardElement, MonitorHandle } from './handle.js';
export { KernelSource, type KernelSourceOptions } from './kernel.js';
export type { MonitorSource } from './source.js';
export * from './wire.js';
